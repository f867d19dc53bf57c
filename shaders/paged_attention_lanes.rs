//! `paged_attention_lanes.wgsl`: attention for CPU drivers, 8 lanes and no barrier. Everything but the text is
//! `paged_attention`'s: the two take the same bindings, uniform and grid.

use crate::paged_attention::Variant;
use crate::{ComposeError, compose};

/// The kernel's text.
pub(crate) fn text(variant: Variant) -> Result<String, ComposeError> {
    compose(
        &[
            ("HEADS", variant.heads()),
            ("HEAD_VEC4S", variant.head_vec4s),
            ("LANE_VEC4S", variant.head_vec4s.div_ceil(8)),
            ("BLOCK_SIZE", variant.block_size),
            ("Y_BINDING", 6),
        ],
        wgsl!("paged_attention_lanes.wgsl"),
        &[
            &[
                wgsl!("common/attention_bindings.wgsl"),
                variant.kv_snippet(),
                wgsl!("common/broadcast.wgsl"),
                wgsl!("common/lanes.wgsl"),
            ][..],
            &variant.activations.y_snippets(variant.y_home),
        ]
        .concat(),
    )
}

/// Loop iterations of one invocation over `context` positions, whatever the head.
pub(crate) fn iterations(context: u32) -> u32 {
    context.div_ceil(16)
}
