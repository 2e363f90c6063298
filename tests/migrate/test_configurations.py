"""Settings in YAML and in mmengine's Python configurations are reported.

A report has the line, and what to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commanded import invoke
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unamp.migrate import migrate_paths

FILES = {
    "default_config.yaml": (
        """compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
mixed_precision: fp16
num_processes: 1
""",
        {3: "Accelerate wraps the model's forward"},
    ),
    "lightning.yaml": (
        """trainer:
  max_epochs: 3
  precision: 16-mixed
other:
  trainer:
    precision: 16
model:
  precision: 16
""",
        {3: "Lightning opens", 6: "Lightning opens"},
    ),
    "deepspeed.yml": (
        """deepspeed: &ds
  fp16:
    enabled: auto
  bf16: {enabled: false}
again: *ds
""",
        {2: "DeepSpeed's engine casts the weights"},
    ),
    "clas.yaml": (
        """Global:
  device: gpu
AMP:
  use_amp: True
  level: O2
---
AMP:
  use_amp: False
""",
        {4: "the trainer that reads it opens"},
    ),
    "old_clas.yaml": ("AMP:\n  scale_loss: 128.0\n", {1: "PaddleClas opens"}),
    "det.yml": (
        "use_gpu: true\namp: yes\nuse_amp: false\n",
        {2: "the trainer that reads it opens"},
    ),
    "yolo.yaml": (
        "ms_mode: 0\nms_amp_level: O2\nms_loss_scaler: static\namp_level: O0\n",
        {2: "hands it to its framework's own AMP"},
    ),
    "trainer.yaml": ("args:\n  - fp16: true\n  - bf16: false\n", {2: "a trainer that takes it"}),
    "mm.yaml": ("optim_wrapper:\n  type: AmpOptimWrapper\n", {2: "mmengine opens"}),
    "mm.py": (
        "optim_wrapper = dict(type='AmpOptimWrapper', loss_scale='dynamic')\n",
        {1: "mmengine opens"},
    ),
    "mm_new.py": (
        (
            "from mmengine.optim import AmpOptimWrapper\n\n"
            "optim_wrapper = dict(type=AmpOptimWrapper)\n"
        ),
        {3: "mmengine opens"},
    ),
    "other.yaml": ("!include base.yaml\n", {}),
    "tags.yaml": ("a: !!python/object/apply:os.system ['touch fp16']\nfp16: !on true\n", {}),
    "prose.yaml": ("description: train with fp16 and amp\nprecision: 3\n", {}),
}


@pytest.mark.parametrize("name", FILES)
def test_settings_are_reported_with_their_line(name: str, tmp_path: Path) -> None:
    text, expected = FILES[name]
    (tmp_path / name).write_text(text)
    report = migrate_paths([tmp_path], write=True)
    found = {finding.line: finding for _, finding in report.findings}
    assert (tmp_path / name).read_text() == text
    assert list(report.errors) == []
    assert found.keys() == expected.keys()
    for line, why in expected.items():
        assert why in found[line].why
        assert found[line].hand


def test_the_command_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "default_config.yaml").write_text("mixed_precision: bf16\n")
    result = invoke("migrate", tmp_path)
    said = result.stdout
    assert result.exit_code == 1
    assert (
        f"{tmp_path / 'default_config.yaml'}:1:1: look here: "
        "mixed_precision: bf16: Accelerate wraps"
    ) in said
    assert 'write mixed_precision="no"' in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fp16: [true\n", "it is no YAML"),
        ("fp16: *nobody\n", "undefined alias"),
        ("fp16: \x00true\n", "it is no YAML"),
        ("{% if fp16 %}\nfp16: true\n{% endif %}\n", "it is no YAML"),
        ("fp16: " + "[" * 100_000, "it is nested too deeply to be read"),
    ],
)
def test_what_is_no_yaml_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text("fp16: true\n")
    report = migrate_paths([tmp_path])
    assert len(report.findings) == 1
    ((path, why),) = report.errors
    assert (path.name, said in why) == ("bad.yaml", True), why


def test_aliases_are_not_multiplied(tmp_path: Path) -> None:
    lines = [
        "a0: &a0 {fp16: true}",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)),
    ]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    (tmp_path / "circle.yaml").write_text("&a {fp16: true, again: *a}")
    report = migrate_paths([tmp_path])
    assert [(path.name, finding.line) for path, finding in report.findings] == [
        ("bomb.yaml", 1),
        ("circle.yaml", 1),
    ]


def test_a_section_is_looked_at_under_each_name_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "trainer: &shared {precision: 16-mixed}\nother: *shared\n"
    )
    assert [finding.line for _, finding in migrate_paths([tmp_path]).findings] == [1]


def test_aliases_that_stand_for_too_much_are_named(tmp_path: Path) -> None:
    lines = ["a0: &a0 {fp16: true}"]
    lines += [
        f"a{n}: &a{n} {{{', '.join(f'k{n}_{i}: *a{n - 1}' for i in range(60))}}}"
        for n in range(1, 60)
    ]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    report = migrate_paths([tmp_path])
    assert [why for _, why in report.errors] == ["its aliases stand for too much"]


def test_sections_that_stand_in_each_other_are_named(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"fp16":' * 100 + '{"enabled": true}' + "}" * 100)
    assert [said for _, said in migrate_paths([path]).errors] == [
        "its sections stand in each other too deeply"
    ]
    path.write_text(
        '{\n"amp": {"enabled": 1,\n "fp16": {"enabled": true}, "bf16": {"enabled": true}}}'
    )
    assert [(found.line, found.column) for _, found in migrate_paths([path]).findings] == [
        (2, 1),
        (3, 2),
        (3, 29),
    ]


def test_large_files_are_data(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("fp16: true\n" + "# fp16\n" * 50_000)
    report = migrate_paths([tmp_path])
    assert (list(report.findings), list(report.errors)) == ([], [])


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("fp16amp:{}[],&*!|>- \n\t'\"\\%true")), max_size=40))
@example("fp16: !!binary x")
@example("? fp16\n: true")
@example("fp16: 0x_\namp: 1_000")
@example("amp_level: 99999999999999999999999999999999")
def test_no_configuration_brings_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(text)
    report = migrate_paths([path], write=True)
    assert path.read_text() == text
    assert all(said and "\n" not in said for _, said in report.errors)
