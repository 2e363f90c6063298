def decorate(networks, optimizers, decoration): pass
