"""What the prose of notebook 04 says about its outputs, wherever it was executed."""

import re

from tests.helpers.shown import alts, printed, table


def test_torchrun_tells_each_process_its_rank():
    told = table("04_ddp_torchrun", "variable")
    differing = [name for name, (*values, _) in told.items() if values == ["0", "1", "2", "3"]]
    assert differing == ["`RANK`", "`LOCAL_RANK`"]
    families = next(alt for alt in alts("04_ddp_torchrun") if "Two trees of processes" in alt)
    by_torchrun, by_python = families.split("lesson 03, started by python")
    assert "rank 0 (RANK=0" in by_torchrun and "rank 1 (RANK=1" in by_torchrun
    assert by_python.count("a child (no RANK)") == 2


def test_lessons_03_and_04_have_the_same_losses():
    for _, launched_by_python, launched_by_torchrun, equal, off in table("04_ddp_torchrun", "epoch").values():
        assert equal == "True"  # compared before the losses were rounded
        assert launched_by_python == launched_by_torchrun and float(off) < 1e-6


def test_each_report_names_the_rank_that_had_an_error():
    text = printed("04_ddp_torchrun")
    raising, hanging = text.split("Root Cause (first observed failure):")[1:]
    assert "rank      : 1" in raising and "image 17 is broken" in raising
    assert "rank      : 0" in hanging and "Timed out waiting 6000ms" in hanging


def test_what_else_its_cells_print():
    text = printed("04_ddp_torchrun")
    assert text.count("333 images, 40 at a time, 8 steps") == 3
    assert "lesson 01: 8 steps; images that some process gets: 999" in text
    for rank in range(2):
        assert f"rank {rank} | a line of rank {rank}" in text
        assert f"attempt_0/{rank}/stderr.log contains: an error of rank {rank}\n" in text
    assert "EADDRINUSE" in text and "2 processes have met" in text
    sizes = re.findall(r"([\d,]+) bytes in the file", text)
    assert len(sizes) == 3 and sizes[1] == "0"
    (drawn,) = [alt for alt in alts("04_ddp_torchrun") if alt.startswith("One file at three moments")]
    assert re.findall(r"([\d,]+) bytes", drawn) == sizes
    assert re.search(r"tags in the lesson's file: cpu\n", text)
    assert re.search(r"tags in the second file: +cuda:0\n", text)


def test_the_picture_of_the_store_shows_what_the_ranks_have_noted():
    moments = re.findall(
        r"rank (\d) sets its key after ([\d.]+) s, and has both keys after ([\d.]+) s",
        printed("04_ddp_torchrun"),
    )
    assert [rank for rank, *_ in moments] == ["0", "1"]
    (drawn,) = [alt for alt in alts("04_ddp_torchrun") if "in torchrun's store" in alt]
    waits = []
    for rank, sets, has_both in moments:
        assert f"rank {rank} sets its key after {sets} s and waits " in drawn
        waits.append(float(has_both) - float(sets))
    assert waits[0] > 1.5 and waits[1] < 0.5, "the answer to Predict 2: rank 0 waits for rank 1"


def test_the_picture_of_map_location_has_the_tag_of_the_file():
    tag = re.search(r"tags in the second file: +(\S+)\n", printed("04_ddp_torchrun"))[1]
    (drawn,) = [alt for alt in alts("04_ddp_torchrun") if "map_location" in alt]
    assert f"a tensor whose tag is {tag}." in drawn and f"all 4 copies are on {tag}." in drawn


def test_the_picture_of_two_machines_names_the_gpus_that_the_text_names():
    (drawn,) = [alt for alt in alts("04_ddp_torchrun") if "2 machines with 2 GPUs" in alt]
    assert "Picked by RANK, GPU 2 and GPU 3 do not exist." in drawn


def test_the_whole_report_is_shown_once():
    raising, hanging = printed("04_ddp_torchrun").split("fails.py FAILED")[1].split("Failures:")[1:3]
    for line in ("time      : ", "host      : ", "error_file: ", 'raise OSError("image 17 is broken")'):
        assert line in raising and line not in hanging
