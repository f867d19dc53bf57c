//! `paged_attention_lanes.wgsl`: attention for CPU drivers, 8 lanes and no barrier. Everything but the text is
//! `paged_attention`'s: the two take the same bindings, uniform and grid.

use crate::{ComposeError, compose};

/// The kernel for tiles of `heads` query heads of `head_vec4s` vec4s.
pub(crate) fn text(heads: u32, head_vec4s: u32) -> Result<String, ComposeError> {
    compose(
        &[("HEADS", heads), ("HEAD_VEC4S", head_vec4s), ("LANE_VEC4S", head_vec4s.div_ceil(8))],
        include_str!("paged_attention_lanes.wgsl"),
        &[include_str!("common/attention_bindings.wgsl"), include_str!("common/lanes.wgsl")],
    )
}

/// Loop iterations of one invocation over `context` positions, whatever the head.
pub(crate) fn iterations(context: u32) -> u32 {
    context.div_ceil(16)
}
