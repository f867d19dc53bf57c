//! Pictures in a terminal: stacked bars, bars, and a lane for each request over time.
//!
//! Pure: figures in, lines out. Invariant: no line is wider than [`WIDTH`] cells, whatever the figures are, and the
//! stretches of a bar fill exactly the bar.

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{Place, RequestTimeline};

use super::amounts::{milliseconds, seconds};
use super::style::{Stretch, Style};

/// The most cells of a line.
pub const WIDTH: usize = 100;
/// Cells of a label on the left.
const LABEL: usize = 20;
/// Cells of a bar at its longest.
const BAR: usize = 56;
/// The most bars of one plot; what would be more is put together.
pub const MAX_BARS: usize = 16;
/// The most requests that get a lane.
pub const MAX_LANES: usize = 16;
/// Cells of the time axis under the lanes.
const AXIS: usize = 72;

/// One bar that is made of stretches.
#[derive(Clone, Debug, PartialEq)]
pub struct Stacked {
    /// What it is of.
    pub label: String,
    /// Its stretches, in order, in nanoseconds.
    pub stretches: Vec<(Stretch, Nanos)>,
    /// The whole, in words.
    pub value: String,
}

/// Bars to one scale, the longest of them as long as the picture is wide.
pub fn stacked(bars: &[Stacked], style: Style) -> Vec<String> {
    let whole = |bar: &Stacked| bar.stretches.iter().map(|(_, length)| *length).sum::<Nanos>();
    let longest = bars.iter().map(whole).max().unwrap_or(0);
    let line = |bar: &Stacked| {
        let (mut at, mut cells) = (0, String::new());
        for (stretch, length) in &bar.stretches {
            let from = cells_of(at, longest, BAR);
            at += length;
            cells.push_str(&style.stretch(*stretch, cells_of(at, longest, BAR) - from));
        }
        let rest = " ".repeat(BAR - cells_of(at, longest, BAR));
        format!("{} {cells}{rest} {}", fitted(&bar.label, LABEL), cut(&bar.value, WIDTH - LABEL - BAR - 2))
    };
    bars.iter().map(|bar| line(bar).trim_end().to_owned()).collect()
}

/// What the stretches of a picture are.
pub fn legend(stretches: &[Stretch], style: Style) -> String {
    let names: Vec<String> = stretches
        .iter()
        .map(|stretch| format!("{} {}", style.stretch(*stretch, 2), stretch.name()))
        .collect();
    names.join("   ")
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Its length, in nanoseconds.
    pub length: Nanos,
    /// What stands behind it.
    pub value: String,
}

/// Bars to one scale.
pub fn bars(bars: &[Bar], style: Style) -> Vec<String> {
    let longest = bars.iter().map(|bar| bar.length).max().unwrap_or(0);
    let line = |bar: &Bar| {
        let cells = cells_of(bar.length, longest, BAR - 8);
        let rest = " ".repeat(BAR - 8 - cells);
        let value = cut(&bar.value, WIDTH - LABEL - BAR + 6);
        format!("{} {}{rest} {value}", fitted(&bar.label, LABEL), style.bar(cells))
    };
    bars.iter().map(|bar| line(bar).trim_end().to_owned()).collect()
}

/// One request's stretches of time; between and around them it was not here.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Whose.
    pub label: String,
    /// In order: what, from, to.
    pub stretches: Vec<(Stretch, Nanos, Nanos)>,
    /// What stands behind it.
    pub value: String,
}

impl Lane {
    /// The lane of an ended request.
    pub fn of(timeline: &RequestTimeline, label: String) -> Self {
        let first_token = timeline.stamps().first_token;
        // The stay that was cut by the first token is the last one that began before it.
        let before = |at: Nanos| first_token.is_none_or(|first| at < first);
        let last_before = timeline.residency().iter().rposition(|stay| before(stay.from));
        let mut waited = false;
        let mut stretches = Vec::new();
        for (idx, stay) in timeline.residency().iter().enumerate() {
            let (from, to) = (stay.from, stay.to);
            match stay.place {
                Place::Inbox => stretches.push((Stretch::Inbox, from, to)),
                Place::Waiting if !waited => {
                    waited = true;
                    stretches.push((Stretch::Queue, from, to));
                }
                Place::Waiting => stretches.push((Stretch::Waste, from, to)),
                Place::Running if Some(idx) == last_before => {
                    let first = first_token.unwrap_or(to).clamp(from, to);
                    stretches.push((Stretch::Prefill, from, first));
                    stretches.push((Stretch::Decode, first, to));
                }
                Place::Running if before(from) => stretches.push((Stretch::Waste, from, to)),
                Place::Running => stretches.push((Stretch::Decode, from, to)),
                Place::Host | Place::Done => {}
            }
        }
        let value = timeline.engine_ttft().map_or_else(|| "no token".into(), |at| milliseconds(at as f64));
        Self { label, stretches, value }
    }
}

/// Lanes over one time axis, from the first beginning to the last end.
pub fn lanes(lanes: &[Lane], style: Style) -> Vec<String> {
    let all = || lanes.iter().flat_map(|lane| &lane.stretches);
    let (Some(from), Some(to)) = (all().map(|s| s.1).min(), all().map(|s| s.2).max()) else {
        return Vec::new();
    };
    // A cell shows where the request was in its middle.
    let middle = |cell: usize| {
        let doubled = u128::from(to - from) * (2 * cell as u128 + 1) / (2 * AXIS as u128);
        from + doubled as Nanos
    };
    let mut lines: Vec<String> = Vec::new();
    for lane in lanes {
        let mut cells = String::new();
        let (mut run, mut length) = (None, 0);
        let flush = |run: Option<Stretch>, length: usize, cells: &mut String| match run {
            Some(stretch) => cells.push_str(&style.stretch(stretch, length)),
            None => cells.push_str(&" ".repeat(length)),
        };
        for cell in 0..AXIS {
            let at = middle(cell);
            let here = lane.stretches.iter().find(|(_, from, to)| (*from..*to).contains(&at)).map(|s| s.0);
            if here != run {
                flush(run, length, &mut cells);
                (run, length) = (here, 0);
            }
            length += 1;
        }
        flush(run, length, &mut cells);
        let value = cut(&lane.value, WIDTH - AXIS - 10);
        lines.push(format!("{} {cells} {value}", fitted(&lane.label, 8)).trim_end().to_owned());
    }
    lines.push(style.quiet(&format!("{} {}", " ".repeat(8), axis(to - from))));
    lines
}

/// The labels of the time axis: its ends and its middle.
fn axis(span: Nanos) -> String {
    let third = AXIS / 3;
    let (middle, end) = (seconds(span as f64 / 2.0), seconds(span as f64));
    format!("{:<third$}{middle:^third$}{end:>third$}", "0 s")
}

/// How many of `width` cells `length` takes where `longest` takes them all, rounded half up.
fn cells_of(length: Nanos, longest: Nanos, width: usize) -> usize {
    if longest == 0 {
        return 0;
    }
    let doubled = 2 * u128::from(length) * width as u128 + u128::from(longest);
    ((doubled / (2 * u128::from(longest))) as usize).min(width)
}

/// Lines of at most [`WIDTH`] cells, broken between words, each after `indent`.
pub fn wrapped(text: &str, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

/// `text` on exactly `width` cells.
fn fitted(text: &str, width: usize) -> String {
    format!("{:<width$}", cut(text, width))
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use firstlight_engine::request::{FinishReason, HostStamps, RequestId};
    use firstlight_engine::timeline::Edge;

    use super::*;

    const COLOURED: Style = Style { blocks: true, colours: true };

    /// Cells of a line, without its colours.
    fn cells(line: &str) -> usize {
        let mut count = 0;
        let mut is_code = false;
        for c in line.chars() {
            match c {
                '\u{1b}' => is_code = true,
                'm' if is_code => is_code = false,
                _ if is_code => {}
                _ => count += 1,
            }
        }
        count
    }

    fn check_stacked(stretches: &[(Stretch, Nanos)], expected: &str) {
        let bar = |label: &str| Stacked {
            label: label.into(),
            stretches: stretches.to_vec(),
            value: "v".repeat(300),
        };
        let lines = stacked(&[bar("a"), bar(&"l".repeat(300))], Style::PLAIN);
        let drawn: String = lines[0].chars().skip(LABEL + 1).take(BAR).collect();
        assert_eq!(drawn.trim_end(), expected, "{stretches:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
        let coloured = stacked(&[bar("a")], COLOURED);
        assert_eq!(cells(&coloured[0]), lines[0].chars().count(), "colours take no cells");
    }

    #[test]
    fn stretches_fill_their_bar_exactly() {
        use Stretch::{Inbox, Prefill, Queue, Waste};
        check_stacked(&[(Queue, 1), (Prefill, 1)], &("-".repeat(28) + &"=".repeat(28)));
        check_stacked(&[(Inbox, 1), (Queue, 1_000_000), (Prefill, 0)], &"-".repeat(56));
        let thirds = "-".repeat(19) + &"x".repeat(18) + &"=".repeat(19);
        check_stacked(&[(Queue, u64::MAX / 4), (Waste, u64::MAX / 4), (Prefill, u64::MAX / 4)], &thirds);
        check_stacked(&[(Queue, 0)], "");
        check_stacked(&[], "");
    }

    fn check_bars(lengths: &[Nanos], expected: &[usize]) {
        let bar = |length: &Nanos| Bar { label: "x".repeat(200), length: *length, value: "y".repeat(200) };
        let all: Vec<Bar> = lengths.iter().map(bar).collect();
        let lines = bars(&all, Style::PLAIN);
        let drawn: Vec<usize> = lines.iter().map(|line| line.matches('#').count()).collect();
        assert_eq!(drawn, expected, "{lengths:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
    }

    #[test]
    fn bars_share_a_scale() {
        check_bars(&[10, 5, 0], &[48, 24, 0]);
        check_bars(&[u64::MAX, 1], &[48, 0]);
        check_bars(&[0, 0], &[0, 0]);
        check_bars(&[], &[]);
    }

    fn check_wrapped(words: usize, expected: usize) {
        let text = vec!["ninechars"; words].join(" ");
        let lines = wrapped(&text, "  ");
        assert_eq!(lines.len(), expected, "{words}");
        assert!(
            lines.iter().all(|line| line.starts_with("  ") && line.chars().count() <= WIDTH),
            "{lines:?}"
        );
        assert_eq!(lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "), text);
    }

    #[test]
    fn a_long_line_is_broken_between_words() {
        // Two cells of indent, nine words of nine and the eight spaces between them are 91; a tenth would make 101.
        check_wrapped(1, 1);
        check_wrapped(9, 1);
        check_wrapped(10, 2);
        check_wrapped(50, 6);
    }

    fn check_lanes(all: &[&[(Stretch, Nanos, Nanos)]], expected: &[&str]) {
        let lane = |stretches: &&[(Stretch, Nanos, Nanos)]| Lane {
            label: "a long label".into(),
            stretches: stretches.to_vec(),
            value: "v".repeat(200),
        };
        let all: Vec<Lane> = all.iter().map(lane).collect();
        let lines = lanes(&all, Style::PLAIN);
        assert_eq!(lines.len(), if expected.is_empty() { 0 } else { expected.len() + 1 });
        for (line, expected) in lines.iter().zip(expected) {
            let drawn: String = line.chars().skip(9).take(AXIS).collect();
            assert_eq!(drawn.trim_end(), *expected);
        }
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
        for (coloured, plain) in lanes(&all, COLOURED).iter().zip(&lines) {
            assert_eq!(cells(coloured), plain.chars().count());
        }
    }

    #[test]
    fn lanes_share_an_axis() {
        use Stretch::{Decode, Inbox, Prefill, Queue};
        let first = "-".repeat(18) + &"=".repeat(18);
        let second = " ".repeat(36) + &".".repeat(18) + &"#".repeat(18);
        check_lanes(
            &[&[(Queue, 100, 200), (Prefill, 200, 300)], &[(Inbox, 300, 400), (Decode, 400, 500)]],
            &[&first, &second],
        );
        check_lanes(&[&[(Queue, 5, 5)]], &[""]);
        check_lanes(&[], &[]);
        check_lanes(&[&[(Queue, 0, 1 << 53)]], &[&"-".repeat(72)]);
    }

    fn check_lane(edges: &[(Edge, Nanos)], expected: &[(Stretch, Nanos, Nanos)]) {
        let stamps = HostStamps::at(0);
        let mut timeline =
            RequestTimeline::created(RequestId(1), Default::default(), Default::default(), &stamps, 3);
        for (edge, now) in edges {
            timeline.advance(edge.clone(), *now);
        }
        let lane = Lane::of(&timeline, "r1".into());
        let drawn: Vec<_> = lane.stretches.into_iter().filter(|(_, from, to)| from < to).collect();
        assert_eq!(drawn, expected, "{edges:?}");
    }

    #[test]
    fn a_lane_is_what_the_residencies_say() {
        use Stretch::{Decode, Inbox, Prefill, Queue, Waste};
        let admitted = Edge::Admitted { cached: 0 };
        let end = Edge::Finished { reason: FinishReason::Length, detail: None };
        check_lane(
            &[(Edge::Queued, 1), (admitted.clone(), 3), (Edge::Token { step: 0 }, 7), (end.clone(), 9)],
            &[(Inbox, 0, 1), (Queue, 1, 3), (Prefill, 3, 7), (Decode, 7, 9)],
        );
        // Evicted in mid-prefill, and again while it decodes.
        check_lane(
            &[
                (Edge::Queued, 0),
                (admitted.clone(), 2),
                (Edge::Preempted, 4),
                (admitted.clone(), 5),
                (Edge::Token { step: 0 }, 8),
                (Edge::Preempted, 10),
                (admitted, 12),
                (end.clone(), 15),
            ],
            &[
                (Queue, 0, 2),
                (Waste, 2, 4),
                (Waste, 4, 5),
                (Prefill, 5, 8),
                (Decode, 8, 10),
                (Waste, 10, 12),
                (Decode, 12, 15),
            ],
        );
        check_lane(&[(end, 4)], &[(Inbox, 0, 4)]);
    }
}
