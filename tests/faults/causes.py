"""What went wrong once, its tests, and how to bring each cause back.

A break is one change of the source. `break_again.py` makes it in a copy of the tree and expects its
tests to fail; docs/security.md has the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Break:
    """`old` of a file becomes `new`; then `tests` fail."""

    when: str  # the words behind "fails when"
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Cause:
    """Something that was found, with the tests that hold it down."""

    what: str
    tests: tuple[str, ...]
    breaks: tuple[Break, ...] = field(default=())


HOSTILE = "tests/checkpoint/test_hostile.py"
SAVES = "tests/checkpoint/test_faults.py"
TRAINING = "tests/lab/training/test_training_faults.py"
BENCH = "tests/lab/bench/test_bench_faults.py"
ARGUMENTS = "tests/engine/cpu/test_arguments.py"
ONE_CHANNEL = "tests/engine/cpu/test_one_input_channel.py"
COMMANDS = "tests/faults/test_command_faults.py"
WEIGHTS = "tests/models/test_weights.py"
GROUPS = "tests/engine/cpu/test_groups.py"
DEFORM = "tests/engine/cpu/test_native_deform.py"
THREADS = "tests/methods/test_methods_and_threads.py"
COUNTS = "tests/engine/cpu/test_thread_counts.py"
FILES = "tests/test_io.py"
PRINTING = "tests/test_printing.py"
RAY = "tests/lab/bench/test_ray.py"
REFUSALS = "tests/runtime/test_refusals.py"
CSRC = "src/codtdq/engine/cpu/csrc"

CAUSES = (
    Cause(
        "orders, shifts, scales and weights of a checkpoint that do not fit reached native memory; "
        "counts and shapes made it hang or take gigabytes; mutations ended in tracebacks",
        (HOSTILE, "tests/fuzz/test_checkpoints.py", ARGUMENTS),
        (
            Break(
                "stored buffers are taken as they are",
                "src/codtdq/schemes/filling.py",
                "            reason = unfit(buffer, expected[leaf])",
                "            reason = None",
                (f"{HOSTILE}::test_buffers_that_do_not_fit_are_refused",),
            ),
            Break(
                "any whole number passes as a setting",
                "src/codtdq/schemes/stored.py",
                "        if type(value) is int and low <= value <= high:\n            return None\n"
                '        return f"a whole',
                '        if type(value) is int:\n            return None\n        return f"a whole',
                (f"{HOSTILE}::test_settings_that_do_not_fit_are_refused",),
            ),
            Break(
                "any order of channels passes in front of the kernels",
                "src/codtdq/engine/border.py",
                "    return torch.equal(order.long().sort().values, torch.arange(order.numel()))",
                "    return True",
                (f"{HOSTILE}::test_a_scheme_changed_in_memory_is_refused_by_the_engine",),
            ),
        ),
    ),
    Cause(
        "convolutions of one input channel with groups of weights read scales of other taps",
        (ONE_CHANNEL,),
        (
            Break(
                "scales that are stored over taps are read tap by tap",
                "src/codtdq/schemes/weights.py",
                "        spread = multiplier.repeat_interleave(group or flat.shape[1], 1)"
                "[:, : flat.shape[1]]",
                "        spread = multiplier.repeat(1, flat.shape[1])[:, : flat.shape[1]]",
                (ONE_CHANNEL,),
            ),
        ),
    ),
    Cause(
        "`.pth` files ran code under torch below 2.10; old floors of other packages",
        (
            f"{WEIGHTS}::test_pickles_are_refused_by_versions_of_torch_that_run_their_code",
            f"{WEIGHTS}::test_load_checkpoint_refuses_torchscript",
            "tests/test_project_files.py::test_floors_leave_out_versions_that_run_code_of_a_file",
        ),
        (
            Break(
                "pickles are read with torch 2.4",
                "src/codtdq/models/weights.py",
                "SAFE_TORCH = (2, 10)",
                "SAFE_TORCH = (2, 4)",
                (f"{WEIGHTS}::test_pickles_are_refused_by_versions_of_torch_that_run_their_code",),
            ),
            Break(
                "TorchScript archives go to torch",
                "src/codtdq/models/weights.py",
                "    if _is_torchscript(path):",
                "    if False:",
                (f"{WEIGHTS}::test_load_checkpoint_refuses_torchscript",),
            ),
            Break(
                "the floor is torch 2.4",
                "pyproject.toml",
                '"torch>=2.10',
                '"torch>=2.4',
                (
                    "tests/test_project_files.py::"
                    "test_floors_leave_out_versions_that_run_code_of_a_file",
                ),
            ),
        ),
    ),
    Cause(
        "a load beside a save mixed two models",
        (
            f"{SAVES}::test_a_file_exchanged_between_hash_and_parse_is_not_read",
            f"{SAVES}::test_loads_beside_a_busy_writer_get_one_of_both_models",
        ),
        (
            Break(
                "a file is hashed, then opened again by its name",
                "src/codtdq/checkpoint/files.py",
                "    return tensors\n",
                "    from codtdq.tensorfile import read_tensors\n\n"
                "    return read_tensors(path)[0]\n",
                (f"{SAVES}::test_a_file_exchanged_between_hash_and_parse_is_not_read",),
            ),
            Break(
                "a load does not follow a pointer that moved on",
                "src/codtdq/checkpoint/files.py",
                "_TRIES = 8",
                "_TRIES = 1",
                (f"{SAVES}::test_a_pointer_that_moved_on_is_followed",),
            ),
        ),
    ),
    Cause(
        "a save that was stopped left nothing to load, and temporary folders",
        (
            f"{SAVES}::test_a_save_that_stops_anywhere_leaves_a_whole_checkpoint",
            f"{SAVES}::test_what_a_dead_writer_left_is_removed_by_the_next_one",
            f"{FILES}::test_content_is_on_disk_before_its_name",
        ),
        (
            Break(
                "old tensors go before the new pointer is there",
                "src/codtdq/checkpoint/files.py",
                "            write_text(directory / META, header.to_text(sealed))\n"
                "            _remove_others(directory, target.name)",
                "            _remove_others(directory, target.name)\n"
                "            write_text(directory / META, header.to_text(sealed))",
                (f"{SAVES}::test_a_save_that_stops_anywhere_leaves_a_whole_checkpoint",),
            ),
            Break(
                "nobody removes what a dead writer left",
                "src/codtdq/io.py",
                "                _remove_abandoned(item)",
                "                pass",
                (f"{SAVES}::test_what_a_dead_writer_left_is_removed_by_the_next_one",),
            ),
            Break(
                "a file takes its name before it is on disk",
                "src/codtdq/io.py",
                "            _force_to_disk(temporary)\n",
                "",
                (f"{FILES}::test_content_is_on_disk_before_its_name",),
            ),
        ),
    ),
    Cause(
        "a loaded model stayed mapped to its file",
        (f"{SAVES}::test_a_loaded_model_does_not_depend_on_its_file",),
        (
            Break(
                "tensors are mapped",
                "src/codtdq/checkpoint/files.py",
                "    return tensors\n",
                "    from safetensors.torch import load_file\n\n    return load_file(path)\n",
                (f"{SAVES}::test_a_loaded_model_does_not_depend_on_its_file",),
            ),
        ),
    ),
    Cause(
        "flipped bits of `codtdq.json` and NaN scales went unseen",
        (
            f"{HOSTILE}::test_a_single_changed_character_of_the_header_shows",
            f"{HOSTILE}::test_buffers_that_do_not_fit_are_refused",
        ),
        (
            Break(
                "the seal of the header is not compared",
                "src/codtdq/checkpoint/header.py",
                "    if meta.get(SEAL) != found:",
                "    if False:",
                (f"{HOSTILE}::test_a_single_changed_character_of_the_header_shows",),
            ),
            Break(
                "NaN passes as a scale",
                "src/codtdq/schemes/stored.py",
                "    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):",
                "    if False:",
                (f"{HOSTILE}::test_buffers_that_do_not_fit_are_refused",),
            ),
        ),
    ),
    Cause(
        "operators of torch took any type and shape",
        (f"{ARGUMENTS}::test_an_operator_refuses_what_does_not_fit",),
        (
            Break(
                "types are not compared",
                "src/codtdq/engine/cpu/arguments.py",
                '        sound = value.dtype is dtype and value.device.type == "cpu" and fits',
                '        sound = value.device.type == "cpu" and fits',
                (f"{ARGUMENTS}::test_an_operator_refuses_what_does_not_fit",),
            ),
            Break(
                "shapes are not compared",
                "src/codtdq/engine/cpu/arguments.py",
                '        sound = value.dtype is dtype and value.device.type == "cpu" and fits',
                '        sound = value.dtype is dtype and value.device.type == "cpu"',
                (f"{ARGUMENTS}::test_an_operator_refuses_what_does_not_fit",),
            ),
        ),
    ),
    Cause(
        "`run.json` was left empty by a full disk",
        (
            f"{BENCH}::test_a_full_disk_leaves_a_whole_run_file",
            f"{BENCH}::test_a_damaged_run_file_is_one_line",
        ),
        (
            Break(
                "it is written in place",
                "src/codtdq/lab/bench/directory.py",
                "        write_json(path, wanted, indent=1)",
                "        path.write_text(json.dumps(wanted, indent=1))",
                (f"{BENCH}::test_a_full_disk_leaves_a_whole_run_file",),
            ),
            Break(
                "an empty one is parsed",
                "src/codtdq/lab/bench/directory.py",
                "    except (ValueError, RecursionError):",
                "    except RecursionError:",
                (f"{BENCH}::test_a_damaged_run_file_is_one_line",),
            ),
        ),
    ),
    Cause(
        "a full disk ended `quantize` and `train` in tracebacks",
        (
            f"{SAVES}::test_a_disk_that_fills_up_is_one_line_and_keeps_the_old_checkpoint",
            f"{TRAINING}::test_a_full_disk_keeps_the_last_state",
            COMMANDS,
        ),
        (
            Break(
                "safetensors writes a checkpoint itself, whose error is no OSError",
                "src/codtdq/checkpoint/files.py",
                "                write_bytes(target, data)",
                "                from safetensors.torch import save_file\n\n"
                "                from codtdq.io import atomic_path\n\n"
                "                with atomic_path(target) as draft:\n"
                '                    save_file(tensors, draft, {"format": "codtdq"})',
                (f"{SAVES}::test_a_disk_that_fills_up_is_one_line_and_keeps_the_old_checkpoint",),
            ),
            Break(
                "torch writes a state itself, in its place",
                "src/codtdq/io.py",
                "    buffer = io.BytesIO()\n    torch.save(state, buffer)\n"
                "    return write_bytes(path, buffer.getvalue())",
                "    torch.save(state, path)\n    return Path(path)",
                (f"{TRAINING}::test_a_full_disk_keeps_the_last_state",),
            ),
        ),
    ),
    Cause(
        "two trainers shared a folder; workers outlived a killed one",
        (
            f"{TRAINING}::test_a_second_run_on_one_folder_is_refused",
            f"{TRAINING}::test_workers_end_with_a_killed_trainer",
        ),
        (
            Break(
                "a folder is not locked",
                "src/codtdq/lab/training/state.py",
                "                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
                "                pass",
                (f"{TRAINING}::test_a_second_run_on_one_folder_is_refused",),
            ),
            Break(
                "workers do not look after their trainer",
                "src/codtdq/lab/training/stream.py",
                "    die_with_parent(parent)\n",
                "",
                (f"{TRAINING}::test_workers_end_with_a_killed_trainer",),
            ),
        ),
    ),
    Cause(
        "damaged resume files ended in tracebacks",
        (
            f"{TRAINING}::test_damaged_files_are_one_line",
            f"{BENCH}::test_a_damaged_part_is_one_line",
        ),
        (
            Break(
                "only errors of the disk are caught",
                "src/codtdq/lab/training/state.py",
                "    except Exception as error:",
                "    except OSError as error:",
                (f"{TRAINING}::test_damaged_files_are_one_line",),
            ),
        ),
    ),
    Cause(
        "batches and threads changed results without a word",
        (THREADS, f"{COUNTS}::test_an_image_alone_gives_what_it_gives_in_a_batch"),
        (
            Break(
                "torch keeps its threads inside of a quantized model",
                "src/codtdq/numerics/threads.py",
                "            if _here.wanted != 1:\n                torch.set_num_threads(1)",
                "            pass",
                (f"{THREADS}::test_nor_does_it_where_torch_cuts_its_sums",),
            ),
        ),
    ),
    Cause(
        "flags of groups with NaN differed between engine and reference; deformable sampling "
        "between numbers of threads",
        (
            f"{GROUPS}::test_flags_of_groups_that_are_not_finite",
            f"{DEFORM}::test_every_number_of_threads_gives_the_same_bits",
        ),
        (
            Break(
                "the reference keeps flags of such groups",
                "src/codtdq/numerics/projection.py",
                "    active, infeasible = active.masked_fill(lost, 0), "
                "infeasible.masked_fill(lost, 0)\n",
                "",
                (f"{GROUPS}::test_flags_of_groups_that_are_not_finite",),
            ),
            Break(
                "the engine keeps flags of such groups",
                f"{CSRC}/project.h",
                "      if (!finite[l]) out.active[at + l] = COD_ACTIVE_BASE, "
                "out.infeasible[at + l] = 0;",
                "      (void)l;",
                (f"{GROUPS}::test_flags_of_groups_that_are_not_finite",),
            ),
            Break(
                "torch multiplies samples, with all of its threads",
                "src/codtdq/engine/float_operators.py",
                "        return deform_conv(x, offsets, self._weight, self._bias, "
                "self._panels[used])",
                "        one = torch.eye(self._weight.shape[0])\n"
                "        rows = deform_conv(x, offsets, one, torch.zeros(len(one)))\n"
                "        y = rows.permute(0, 2, 3, 1) @ self._weight + self._bias\n"
                "        return y.permute(0, 3, 1, 2)",
                (f"{DEFORM}::test_every_number_of_threads_gives_the_same_bits",),
            ),
        ),
    ),
    Cause(
        "formulas in CSV cells, escapes in tables",
        (PRINTING,),
        (
            Break(
                "cells are written as they are",
                "src/codtdq/lab/csvtable.py",
                "    if not isinstance(value, str) or not value.startswith(_FORMULA):",
                "    if True:",
                (f"{PRINTING}::test_csv_cells_are_no_formulas",),
            ),
            Break(
                "text is shown as it is",
                "src/codtdq/printing.py",
                "    if text.isascii() and text.isprintable():",
                "    if True:",
                (
                    f"{PRINTING}::test_text_tables_show_no_controls",
                    f"{PRINTING}::test_errors_of_the_command_line_show_no_controls",
                ),
            ),
        ),
    ),
    Cause(
        "guessable temporary names, links followed, modes beyond the umask",
        (FILES,),
        (
            Break(
                "a temporary file may be there already",
                "src/codtdq/io.py",
                "os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666",
                "os.O_WRONLY | os.O_CREAT, 0o666",
                (f"{FILES}::test_temporary_names_differ_and_are_never_reused",),
            ),
            Break(
                "every file gets 0644",
                "src/codtdq/io.py",
                "            temporary.chmod(mode)",
                "            temporary.chmod(0o644)",
                (f"{FILES}::test_written_files_have_the_mode_that_the_umask_allows",),
            ),
        ),
    ),
    Cause(
        "`state/` left by a killed benchmark; Ray on the loopback address, deaf to SIGTERM",
        (f"{BENCH}::test_what_a_run_left_that_was_killed_after_its_last_row_is_removed", RAY),
        (),
    ),
    Cause(
        "memory that a program file asks for without having it; numbers of threads without a "
        "limit; lengths that unpacking weights believed; exceptions of the C++ library across the "
        "C interface",
        (
            f"{REFUSALS}::test_files_that_ask_for_memory_they_do_not_pay_for",
            "tests/fuzz/kernel_target.cpp",
            f"{ARGUMENTS}::test_weights_believe_no_length",
        ),
    ),
)
