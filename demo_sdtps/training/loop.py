"""The training loop of re-identification and of SEPS, which give it their loss and their evaluation as a `Task`.

A run that was interrupted resumes from last.pth and gives, to the last bit, the numbers of an uninterrupted one.
"""

from collections.abc import Callable
from typing import Any

from torch.nn.utils import clip_grad_norm_
from yacs.config import CfgNode

from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.config.schema import Schema
from demo_sdtps.datasets.loaders import epoch_sampler
from demo_sdtps.runtime.device import autocast, deterministic_backward
from demo_sdtps.runtime.distributed import world_size
from demo_sdtps.runtime.gpu import Recording
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.run import Loss, MakeTask, Run, open_run


def fit(
    cfg: CfgNode, overwrite: bool, make_task: MakeTask, schema: Schema = DEMO_SCHEMA
) -> Run | None:
    """Start or resume the run of `cfg` in each of the processes → the run, None where it was finished before. A signal ends it
    by `Stopped`, Ctrl-C by `KeyboardInterrupt`, once it is saved."""
    with open_run(cfg, overwrite, make_task, schema) as run:
        if run is None:
            return None
        solver, task, model, scaler = cfg.SOLVER, run.task, run.task.model, run.scaler

        def gradients(batch: Any) -> Loss:
            with autocast(run.device, run.precision):
                loss, samples, sums = task.loss(batch)
            for optimizer in task.optimizers:
                optimizer.zero_grad(set_to_none=True)
            with deterministic_backward():
                scaler.scale(loss).backward()
            return Loss(loss.detach(), samples, sums)

        step: Callable[[Any], Loss] = gradients
        # Not where gradients are exchanged, or scaled by what the optimiser reads back.
        if task.can_record and world_size() == 1 and not scaler.is_enabled():
            step = Recording(gradients)
        if not run.records and run.step == 0 and solver.get("EVAL_UNTRAINED"):
            run.report(0, {}, run.evaluate(0))
        while run.epoch < solver.MAX_EPOCHS:
            epoch = run.epoch + 1
            task.begin_epoch(epoch)
            epoch_sampler(task.loader).begin(epoch, run.step)
            model.train()
            title, loaded = f"epoch {epoch}/{solver.MAX_EPOCHS}", run.meter.time(task.batches())
            bar = progress(loaded, title, len(task.loader), unit="batch", initial=run.step)
            for batch in bar:
                loss, samples, sums = step(batch.to(run.device))
                if solver.GRAD_CLIP:
                    # The norm is that of the unscaled gradient.
                    scaler.unscale_(task.optimizers[0])
                    clip_grad_norm_(model.parameters(), solver.GRAD_CLIP)
                for optimizer in task.optimizers:
                    scaler.step(optimizer)
                scaler.update()
                run.step += 1
                run.meter.update(samples, loss=loss * samples, **sums)
                run.monitor.add(epoch, run.step, loss)
                if run.step % solver.LOG_PERIOD == 0 and run.monitor.recent:
                    # what is read anyway: no wait for a GPU
                    speed = f"{run.meter.speed():.0f} {task.unit}/s"
                    bar.set_postfix_str(f"loss {run.monitor.recent[-1]:.3f}, {speed}")
                run.checkpoint()
            run.finish_epoch()
            is_last = run.epoch == solver.MAX_EPOCHS
            run.checkpoint(is_due=is_last or run.epoch % solver.CHECKPOINT_PERIOD == 0)
        return run
