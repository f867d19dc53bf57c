//! The engine's steps on the lanes' time axis: what each held, as bars.
//!
//! Invariant: bars never overlap, each is at least a pixel wide, and there are at most as many as the picture has pixels.

use std::collections::VecDeque;

use firstlight_engine::timeline::{Obstacle, StepRecord};

use super::axis::Viewport;

/// One step, or several that share a pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepBar {
    /// The left edge, in pixels.
    pub x: f64,
    /// The width, in pixels.
    pub w: f64,
    /// The first one's id.
    pub step_id: u64,
    /// How many it stands for.
    pub steps: usize,
    /// Prompt tokens; of several steps, the most.
    pub prefill_tokens: u32,
    /// Rows that continue an answer; of several, the most.
    pub decode_rows: u32,
    /// Blocks in use over blocks in the pool, 0 to 1; of several, the most.
    pub blocks: f64,
    /// Where admission stopped, in the last of them in which it did.
    pub obstacle: Option<Obstacle>,
    /// Whether the device failed in one.
    pub failed: bool,
    /// Requests that were evicted.
    pub preempted: usize,
}

/// The steps in view.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepStrip {
    /// From left to right.
    pub bars: Vec<StepBar>,
    /// The most prompt tokens of a step in view.
    pub most_prefill: u32,
    /// The most decode rows.
    pub most_decode: u32,
}

/// Prompt tokens of a step.
pub fn prefill_tokens(step: &StepRecord) -> u32 {
    step.prefill.iter().fold(0, |sum, (_, tokens)| sum.saturating_add(*tokens))
}

fn bar(step: &StepRecord, x: f64, w: f64) -> StepBar {
    let blocks = f64::from(step.blocks_used) / f64::from(step.blocks_total.max(1));
    StepBar {
        x,
        w,
        step_id: step.id,
        steps: 1,
        prefill_tokens: prefill_tokens(step),
        decode_rows: step.decode_rows,
        blocks: blocks.min(1.0),
        obstacle: step.obstacle,
        failed: step.failed,
        preempted: step.preempted.len(),
    }
}

/// The steps in view as bars.
pub fn strip(steps: &VecDeque<StepRecord>, viewport: &Viewport) -> StepStrip {
    let mut strip = StepStrip::default();
    // Narrow steps share the pixel they begin in.
    let mut narrow_pixel = None;
    let first = steps.partition_point(|step| viewport.x(step.done_at) < 0.0);
    for step in steps.range(first..) {
        let (from, to) = (viewport.x(step.schedule_at), viewport.x(step.done_at));
        if from > viewport.width {
            break;
        }
        let (from, to) = (from.max(-1.0), to.min(viewport.width + 1.0));
        let edge = strip.bars.last().map_or(-1.0, |last| last.x + last.w);
        let pixel = (to - from < 2.0).then_some(from.floor() as i64);
        let next = match pixel {
            Some(pixel) => {
                let x = (pixel as f64).max(edge);
                bar(step, x, (pixel as f64 + 1.0).max(x + 1.0) - x)
            }
            None => {
                let x = from.max(edge);
                bar(step, x, (to - x).max(1.0))
            }
        };
        strip.most_prefill = strip.most_prefill.max(next.prefill_tokens);
        strip.most_decode = strip.most_decode.max(next.decode_rows);
        match strip.bars.last_mut().filter(|_| pixel.is_some() && pixel == narrow_pixel) {
            Some(last) => merge(last, &next),
            None => strip.bars.push(next),
        }
        narrow_pixel = pixel;
    }
    strip
}

fn merge(into: &mut StepBar, next: &StepBar) {
    into.steps += 1;
    into.prefill_tokens = into.prefill_tokens.max(next.prefill_tokens);
    into.decode_rows = into.decode_rows.max(next.decode_rows);
    into.blocks = into.blocks.max(next.blocks);
    into.obstacle = next.obstacle.or(into.obstacle);
    into.failed |= next.failed;
    into.preempted += next.preempted;
}

/// The step that ran at a position, or the one that began last before it.
pub fn step_at<'s>(steps: &'s VecDeque<StepRecord>, viewport: &Viewport, x: f64) -> Option<&'s StepRecord> {
    let at = viewport.at(x);
    let after = steps.partition_point(|step| step.schedule_at <= at);
    steps.get(after.checked_sub(1)?)
}

/// What admission stopped at, in words.
pub fn obstacle_name(obstacle: Obstacle) -> &'static str {
    super::part::Cause::from(obstacle).name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixtures::step;

    #[test]
    fn bars_are_bounded_never_overlap_and_keep_what_is_rare() {
        let steps: VecDeque<StepRecord> = (0..4_000)
            .map(|id| {
                let from = id * 1_000;
                // Every seventh is long, one fails, one evicts.
                let lasted = if id % 7 == 0 { 950 } else { 40 };
                let mut step = step(id, from, from + lasted);
                step.failed = id == 1_234;
                step.preempted =
                    if id == 77 { vec![firstlight_engine::request::RequestId(1)] } else { Vec::new() };
                step.prefill = vec![(firstlight_engine::request::RequestId(0), (id % 100) as u32)];
                step
            })
            .collect();
        for ns_per_px in [1.0, 37.0, 400.0, 1e3, 1e4, 1e6, 1e9] {
            let view = Viewport { from: 0.0, ns_per_px, width: 800.0 };
            let strip = strip(&steps, &view);
            assert!(!strip.bars.is_empty() && strip.bars.len() <= 803, "{ns_per_px}: {}", strip.bars.len());
            assert!(strip.bars.iter().all(|bar| bar.w >= 1.0 - 1e-9 && bar.x.is_finite()), "{ns_per_px}");
            let apart = strip.bars.windows(2).all(|pair| pair[0].x + pair[0].w <= pair[1].x + 1e-9);
            assert!(apart, "{ns_per_px}");
        }
        let all = strip(&steps, &Viewport { from: 0.0, ns_per_px: 1e4, width: 800.0 });
        assert_eq!(all.bars.iter().map(|bar| bar.steps).sum::<usize>(), 4_000);
        assert_eq!(all.bars.iter().filter(|bar| bar.failed).count(), 1);
        assert_eq!(all.bars.iter().map(|bar| bar.preempted).sum::<usize>(), 1);
        assert_eq!(all.most_prefill, 99);
    }
}
