//! `paged_attention_lanes.wgsl`: attention for CPU drivers, 8 lanes and no barrier. Everything but the text is
//! `paged_attention`'s: the two take the same bindings, uniform and grid.

use crate::paged_attention::Variant;
use crate::{ComposeError, compose};

/// The kernel's text.
pub(crate) fn text(variant: Variant) -> Result<String, ComposeError> {
    compose(
        &[
            &variant.constants()[..],
            &[
                ("LANE_VEC4S", variant.head_vec4s.div_ceil(8)),
                ("LANE_CELLS", variant.head_vec4s.div_ceil(16)),
            ],
        ]
        .concat(),
        wgsl!("paged_attention_lanes.wgsl"),
        &[
            &[
                wgsl!("common/attention_bindings.wgsl"),
                wgsl!("common/broadcast.wgsl"),
                wgsl!("common/lanes.wgsl"),
            ][..],
            &variant.kv.read_snippets(variant.work_home),
            &variant.activations.y_snippets(variant.y_home),
        ]
        .concat(),
    )
}

/// Loop iterations of one invocation over `context` positions, whatever the head.
pub(crate) fn iterations(context: u32) -> u32 {
    context.div_ceil(16)
}
