"""``python -m unamp_paddle``: build what runs in C; see `unamp_paddle.compiled`."""

from unamp_paddle import compiled

if __name__ == "__main__":
    print(f"built {compiled.build()}")
