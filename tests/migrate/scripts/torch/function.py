"""A function with a backward pass of its own, under the region of its forward pass."""

import torch
import torch.amp as mixed

torch.manual_seed(3)


class Product(torch.autograd.Function):
    @staticmethod
    @mixed.custom_fwd(device_type="cpu")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @mixed.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.mm(b.t()), a.t().mm(grad)


weight = torch.nn.Parameter(torch.randn(8, 4))
optimizer = torch.optim.SGD([weight], lr=0.1)
x = torch.randn(16, 8)
for _ in range(3):
    optimizer.zero_grad()
    with mixed.autocast("cpu", torch.bfloat16):
        loss = Product.apply(x, weight).softmax(1).amax(1).sum()
    loss.backward()
    optimizer.step()

RESULT = [weight.detach().numpy()]
