"""``python -m unamp_mindspore``: build what runs in C; see `unamp_mindspore.compiled`."""

from unamp_mindspore import compiled

if __name__ == "__main__":
    print(f"built {compiled.build()}")
