//! Tests of the parts' colours: what lies side by side is told apart with every kind of colour vision.
//!
//! Colour vision is simulated as Machado, Oliveira and Fernandes (2009) do at full severity; differences are distances in
//! OKLab, where 0.02 is just seen. Invariant: it reads the style sheet that the page has.

use super::part::LEGEND;

const SHEET: &str = include_str!("../../timelines.css");

type Rgb = [f64; 3];

const SIGHTS: [(&str, [Rgb; 3]); 4] = [
    ("usual", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "without long waves",
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ),
    (
        "without middle waves",
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ),
    (
        "without short waves",
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ),
];

/// The colour of a class in the block that begins with `block`, as linear light.
fn colour(block: &str, class: &str) -> Rgb {
    let rest = SHEET.split(block).nth(1).unwrap_or_else(|| panic!("no {block}"));
    let rest = rest.split('}').next().and_then(|block| block.split(&format!("--part-{class}: #")).nth(1));
    let hex = &rest.unwrap_or_else(|| panic!("no {class} in {block}"))[..6];
    [0, 2, 4].map(|at| {
        let value =
            f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("the style sheet has it")) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

fn times(matrix: &[Rgb; 3], rgb: Rgb) -> Rgb {
    [0, 1, 2].map(|row| (0..3).map(|of| matrix[row][of] * rgb[of]).sum::<f64>().clamp(0.0, 1.0))
}

fn oklab(rgb: Rgb) -> Rgb {
    let to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ];
    let [l, m, s] = times(&to_cones, rgb).map(f64::cbrt);
    [
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    ]
}

fn distance(a: Rgb, b: Rgb) -> f64 {
    let (a, b) = (oklab(a), oklab(b));
    (0..3).map(|of| (a[of] - b[of]).powi(2)).sum::<f64>().sqrt()
}

/// What can follow what in a lane or in a bar.
fn neighbours() -> Vec<(&'static str, &'static str)> {
    let queue = ["queue", "queue-slots", "queue-budget", "queue-blocks", "queue-order", "queue-paused"];
    let mut pairs = vec![
        ("gateway", "route"),
        ("route", "preparation"),
        ("preparation", "inbox"),
        ("inbox", "prefill"),
        ("prefill", "stall"),
        ("prefill", "decode"),
        ("lost-prefill", "requeue"),
        ("lost-prefill", "stall"),
        ("requeue", "prefill"),
        ("decode", "requeue"),
        ("requeue", "recompute"),
        ("recompute", "decode"),
    ];
    for (idx, cause) in queue.into_iter().enumerate() {
        pairs.extend([("inbox", cause), (cause, "prefill"), (cause, "lost-prefill")]);
        pairs.extend(queue[idx + 1..].iter().map(|other| (cause, *other)));
    }
    pairs
}

#[test]
fn neighbours_are_told_apart_with_every_kind_of_colour_vision() {
    let hatched = |class: &str| LEGEND.iter().any(|(one, _, waste)| *one == class && *waste);
    for block in [":root {", r#":root[data-theme="dark"] {"#] {
        for (a, b) in neighbours() {
            // The hatch tells as much as the colour.
            let least = if hatched(a) == hatched(b) { 0.06 } else { 0.03 };
            for (sight, matrix) in SIGHTS {
                let apart = distance(times(&matrix, colour(block, a)), times(&matrix, colour(block, b)));
                assert!(apart >= least, "{a} and {b} in {block} with sight {sight}: {apart:.3}");
            }
        }
    }
}

#[test]
fn both_dark_blocks_have_the_same_colours() {
    for (class, ..) in LEGEND {
        let (asked, chosen) = (r#":root:not([data-theme="light"]) {"#, r#":root[data-theme="dark"] {"#);
        assert_eq!(colour(asked, class), colour(chosen, class), "{class}");
        // Every part has a class of its own that shows its colour.
        assert!(SHEET.contains(&format!(".part-{class} {{ --part: var(--part-{class}); }}")), "{class}");
    }
}
