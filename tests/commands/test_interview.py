"""The commands of interviews: what their parser understands."""

import pytest

from personae.cli import main


def test_options_before_the_commands_name_are_refused_and_not_undone(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["interview", "--judge", "local", "--max-cost", "5", "import", "x", "--out", "run"])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "--judge, --max-cost behind 'import'" in told


def test_options_behind_the_commands_name_are_its_own(capsys, tmp_path) -> None:
    words = ["interview", "import", str(tmp_path / "none.json"), "--judge", "local"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "none.json" in capsys.readouterr().err
