"""The default preset has a decision about every operation that computes.

The principle is in docs/design.md. A new operation fails here until it is on one of the lists: a
product, an operation in float32, or an operation that follows its inputs.
"""

from __future__ import annotations

import pytest

from unamp import Policy, Rule
from unamp.vocabulary import vocabulary

#: The rules at O1, by group: a product, an operation in float32, an operation that follows its
#: inputs.
DECIDED = {
    "matmul": {
        Rule.LOW: """
        addbmm addmm addmm_activation addmv addr baddbmm bilinear bmm chain_matmul einsum grouped_mm
        inner linalg_multi_dot linalg_vecdot linear matmul matmul_flatten matrix_power mm mv
        tensordot trilinear
        """,
        Rule.FP32: """
        sparse_addmm sparse_mm
        """,
        Rule.WIDEST: """
        dot kron outer scaled_mm vdot
        """,
    },
    "conv": {
        Rule.LOW: """
        conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
        correlation depthwise_conv2d separable_conv2d
        """,
        Rule.FP32: """
        deform_conv2d
        """,
        Rule.WIDEST: """
        dilation2d
        """,
    },
    "attention": {
        Rule.LOW: """
        fused_attention fused_feedforward multi_head_attention point_cloud_mlp
        scaled_dot_product_attention transformer_decoder_layer transformer_encoder_layer
        """,
        Rule.WIDEST: """
        fused_rotary_position_embedding
        """,
    },
    "recurrent": {
        Rule.LOW: """
        gru gru_cell lstm lstm_cell rnn rnn_cell
        """,
    },
    "elementwise": {
        Rule.FP32: """
        acos acosh asin asinh atanh betainc cosh digamma entr erfcinv erfcx erfinv exp exp2 expm1
        float_power igamma igammac lbeta lgamma log log10 log1p log2 log_ndtr logaddexp logaddexp2
        mvlgamma ndtri polygamma pow reciprocal rsqrt sinh square squared_difference tan xlog1py
        xlogy zeta
        """,
        Rule.WIDEST: """
        abs add add_n addcdiv addcmul angle atan atan2 bias_add cbrt ceil clamp complex copysign cos
        deg2rad diff div divide_no_nan erf erfc floor floor_divide fmax fmin fmod frac frexp gcd
        gradient heaviside hypot increment lcm ldexp lerp maximum minimum mul multiply_no_nan
        nan_to_num ndtr neg nextafter polar positive rad2deg remainder round scale sgn sign sin sinc
        sqrt sub trunc xdivy
        """,
    },
    "activation": {
        Rule.LOW: """
        prelu
        """,
        Rule.FP32: """
        log_sigmoid logit softplus sparsemax
        """,
        Rule.WIDEST: """
        celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu maxout mish relu
        relu6 rrelu selu sigmoid silu softshrink softsign squareplus stanh swiglu tanh tanhshrink
        threshold thresholded_relu
        """,
    },
    "softmax": {
        Rule.FP32: """
        adaptive_log_softmax gumbel_softmax log_softmax logsumexp softmax softmin
        """,
    },
    "loss": {
        Rule.FP32: """
        binary_cross_entropy binary_cross_entropy_with_logits circle_loss compute_average_loss
        cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dice_loss focal_loss
        gaussian_nll_loss hinge_embedding_loss hinge_loss hsigmoid_loss huber_loss kl_div l1_loss
        log_cosh_loss log_loss mape_loss margin_cross_entropy margin_ranking_loss mse_loss msle_loss
        multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nce_loss nll_loss
        npair_loss pairwise_distance poisson_nll_loss psnr rnnt_loss smooth_l1_loss soft_margin_loss
        ssim total_variation triplet_margin_loss triplet_margin_with_distance_loss
        """,
        Rule.WIDEST: """
        label_smooth
        """,
    },
    "reduction": {
        Rule.FP32: """
        bincount cdist clip_by_norm corrcoef cov cumprod cumsum cumulative_trapezoid dist
        frobenius_norm histc l1_norm linalg_matrix_norm linalg_norm linalg_vector_norm logcumsumexp
        nansum norm nuclear_norm pdist prod segment_pool send_u_recv squared_l2_norm std std_mean
        sum trapezoid unsorted_segment_sum var var_mean
        """,
        Rule.WIDEST: """
        amax amin aminmax count_nonzero cummax cummin fast_unsorted_segment_max max mean median min
        mode nanmean nanmedian nanquantile quantile
        """,
    },
    "norm": {
        Rule.FP32: """
        group_norm layer_norm local_response_norm normalize renorm rms_norm
        """,
        Rule.WIDEST: """
        batch_norm instance_norm spectral_norm weight_norm
        """,
    },
    "pooling": {
        Rule.FP32: """
        lp_pool1d lp_pool2d lp_pool3d psroi_pool roi_align roi_pool
        """,
        Rule.WIDEST: """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d avg_pool avg_pool1d avg_pool2d avg_pool3d
        fractional_avg_pool2d fractional_max_pool2d fractional_max_pool3d max_pool max_pool1d
        max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
        max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d pool2d pool3d voxel_max
        """,
    },
    "resize": {
        Rule.FP32: """
        affine_grid crop_and_resize image_projective_transform interpolate resize_area
        scale_and_translate upsample_bicubic2d upsample_bilinear2d upsample_lanczos2d
        upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_nearest_exact1d upsample_nearest_exact2d upsample_nearest_exact3d
        upsample_trilinear3d
        """,
        Rule.WIDEST: """
        grid_sample
        """,
    },
    "linalg": {
        Rule.FP32: """
        cholesky_inverse cholesky_solve geqrf linalg_cholesky linalg_cond linalg_det linalg_eig
        linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
        linalg_ldl_factor linalg_ldl_solve linalg_lstsq linalg_lu linalg_matrix_exp
        linalg_matrix_log linalg_matrix_rank linalg_matrix_sqrt linalg_pinv linalg_qr linalg_slogdet
        linalg_solve linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv
        linalg_tensorsolve linalg_tridiagonal_solve logdet lu_solve ormqr pinverse trace
        """,
        Rule.WIDEST: """
        cross lu_unpack
        """,
    },
    "fft": {
        Rule.FP32: """
        dct fft_c2c fft_c2r fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft
        fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_r2c
        fft_rfft fft_rfft2 fft_rfftn idct istft stft
        """,
    },
    "special": {
        Rule.FP32: """
        bessel_j0 bessel_j1 bessel_k0 bessel_k0e bessel_k1 bessel_k1e bessel_y0 bessel_y1 dawsn
        expint fresnel i0 i0e i1 i1e spence
        """,
    },
    "embedding": {
        Rule.FP32: """
        embedding_bag
        """,
        Rule.WIDEST: """
        embedding
        """,
    },
    "quantize": {
        Rule.WIDEST: """
        dequantize_linear fake_quantize_dequantize_abs_max
        fake_quantize_dequantize_moving_average_abs_max fake_quantize_per_channel_affine
        fake_quantize_per_tensor_affine quantize_and_dequantize quantize_linear weight_only_linear
        """,
    },
    "random": {
        Rule.FP32: """
        bernoulli binomial dirichlet gamma multinomial poisson
        """,
        Rule.UNTOUCHED: """
        alpha_dropout dropout dropout1d dropout2d dropout3d exponential feature_alpha_dropout
        gaussian_noise laplace normal rand rand_like randint randint_like randn randn_like randperm
        shuffle truncated_normal uniform
        """,
    },
    "indexing": {
        Rule.FP32: """
        index_add scatter_add scatter_nd scatter_nd_add scatter_reduce
        """,
        Rule.WIDEST: """
        argmax argmin argsort as_strided_scatter batch_to_space block_diag cartesian_prod cat
        circular_pad column_stack combinations constant_pad_nd diag diag_embed diagonal_scatter
        dstack dynamic_partition dynamic_stitch fill_diagonal fold gather gather_nd hstack index
        index_copy index_fill index_put index_reduce index_select kthvalue masked_fill
        masked_scatter masked_select matrix_band_part matrix_set_diag multiplex nonzero pad
        pad_sequence put reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d reverse_sequence scatter select_scatter slice_scatter
        sort space_to_batch stack take take_along_dim temporal_shift tensor_scatter_update topk tril
        triu unfold unique unique_consecutive vstack where
        """,
    },
}

#: Operations in float32 at O2 as well: losses, norms, clipping by norm, draws, moved pixels, and
#: sums that add one number after another.
KEPT_AT_O2 = """
    batch_norm bernoulli binary_cross_entropy binary_cross_entropy_with_logits bincount binomial
    circle_loss clip_by_norm compute_average_loss cosine_embedding_loss cosine_similarity
    cross_entropy ctc_loss cumsum cumulative_trapezoid dice_loss dirichlet focal_loss gamma
    gaussian_nll_loss group_norm gumbel_softmax hinge_embedding_loss hinge_loss histc hsigmoid_loss
    huber_loss image_projective_transform index_add instance_norm kl_div l1_loss layer_norm
    log_cosh_loss log_loss log_softmax logcumsumexp logsumexp mape_loss margin_cross_entropy
    margin_ranking_loss mse_loss msle_loss multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss multinomial nce_loss nll_loss npair_loss poisson poisson_nll_loss
    psnr rms_norm rnnt_loss scatter_add scatter_nd scatter_nd_add scatter_reduce segment_pool
    send_u_recv smooth_l1_loss soft_margin_loss squared_l2_norm ssim total_variation
    triplet_margin_loss triplet_margin_with_distance_loss unsorted_segment_sum
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("group", DECIDED)
def test_every_operation_is_decided(group: str, dtype: str) -> None:
    policy = Policy("O1", dtype)
    found = {
        rule: {op for op in vocabulary().groups[group] if policy.decide(op) is rule}
        for rule in DECIDED[group]
    }
    assert found == {rule: set(ops.split()) for rule, ops in DECIDED[group].items()}
    assert set().union(*found.values()) == set(vocabulary().groups[group])


def test_all_other_groups_keep_their_meaning_or_store() -> None:
    others = vocabulary().groups.keys() - DECIDED.keys()
    assert others == {"shape", "creation", "cast", "comparison", "other"}


def test_what_is_kept_at_o2_is_decided() -> None:
    policy = Policy("O2", "float16")
    assert {op for op in vocabulary() if policy.decide(op) is Rule.FP32} == set(KEPT_AT_O2.split())
