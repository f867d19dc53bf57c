//! Lanes, steps, axis and charts as SVG text: one path for each kind of thing, so that a busy picture has few elements.
//!
//! Colours are classes. Invariant: nothing but numbers and names from this crate gets into the text unescaped.

use std::fmt::Write;

use firstlight_engine::timeline::Obstacle;

use super::axis::AxisTick;
use super::charts::Chart;
use super::cut::MarkKind;
use super::lanes::{Lane, Rect};
use super::part::Cause;
use super::steps::StepStrip;

/// Of a lane, in pixels.
pub const LANE_HEIGHT: f64 = 28.0;
/// Of the steps beneath.
pub const STEPS_HEIGHT: f64 = 72.0;
/// Of the axis.
pub const AXIS_HEIGHT: f64 = 22.0;
/// Where a lane's bar begins, and how high it is.
const BAR: (f64, f64) = (6.0, 14.0);
/// The same of hold and write.
const THIN: (f64, f64) = (21.5, 3.0);

/// A number with at most two decimals, which is finer than any screen.
fn px(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn boxed(path: &mut String, x: f64, y: f64, w: f64, h: f64) {
    // Text can be written to a string without an error.
    let _ = write!(path, "M{} {}h{}v{}h{}z", px(x), px(y), px(w), px(h), px(-w));
}

/// Escapes text for SVG and HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// One path for each colour, however many rectangles have it.
#[derive(Default)]
struct Paths(Vec<(&'static str, String)>);

impl Paths {
    fn of(&mut self, class: &'static str) -> &mut String {
        let known = self.0.iter().position(|(name, _)| *name == class);
        let idx = known.unwrap_or_else(|| {
            self.0.push((class, String::new()));
            self.0.len() - 1
        });
        &mut self.0[idx].1
    }

    fn write(&self, out: &mut String) {
        for (class, path) in &self.0 {
            let _ = write!(out, r#"<path class="part-{class}" d="{path}"/>"#);
        }
    }
}

fn bars(out: &mut String, rects: &[Rect], (y, h): (f64, f64)) {
    let mut paths = Paths::default();
    let (mut waste, mut cuts) = (String::new(), String::new());
    for (idx, rect) in rects.iter().enumerate() {
        boxed(paths.of(rect.part.class()), rect.x, y, rect.w, h);
        if rect.part.is_waste() {
            boxed(&mut waste, rect.x, y, rect.w, h);
        }
        // Neighbours are told apart by a line, not by colour alone.
        let neighbour = idx.checked_sub(1).map(|before| &rects[before]);
        if neighbour.is_some_and(|neighbour| neighbour.w >= 4.0 && rect.w >= 4.0) {
            let _ = write!(cuts, "M{} {y}v{h}", px(rect.x));
        }
    }
    paths.write(out);
    if !waste.is_empty() {
        let _ = write!(out, r##"<path fill="url(#waste)" d="{waste}"/>"##);
    }
    if !cuts.is_empty() {
        let _ = write!(out, r#"<path class="cut-line" d="{cuts}"/>"#);
    }
}

/// What is inside a lane's `<svg>`, `LANE_HEIGHT` high.
pub fn lane(lane: &Lane) -> String {
    let mut out = String::new();
    bars(&mut out, &lane.rects, BAR);
    bars(&mut out, &lane.transport, THIN);
    let (mut usual, mut slow) = (String::new(), String::new());
    for tick in &lane.ticks {
        let (path, y, h) = if tick.slow { (&mut slow, 3.0, 20.0) } else { (&mut usual, 9.0, 8.0) };
        let _ = write!(path, "M{} {y}v{h}", px(tick.x));
    }
    for (class, path) in [("tick", usual), ("tick-slow", slow)] {
        if !path.is_empty() {
            let _ = write!(out, r#"<path class="{class}" d="{path}"/>"#);
        }
    }
    for (kind, x) in &lane.marks {
        mark(&mut out, *kind, px(*x));
    }
    out
}

fn mark(out: &mut String, kind: MarkKind, x: f64) {
    use firstlight_engine::request::FinishReason::{Length, Stop, StopString};
    let (class, path) = match kind {
        MarkKind::Evicted => ("mark-evicted", format!("M{x} 7l-4.5 -7h9z")),
        MarkKind::FirstToken => ("mark-token", format!("M{x} 1l3.5 4l-3.5 4l-3.5 -4z")),
        MarkKind::FirstText => ("mark-line", format!("M{x} 20v6")),
        MarkKind::FirstWrite => ("mark-write", format!("M{x} 20.5l3.5 6h-7z")),
        MarkKind::LastWrite => ("mark-line", format!("M{x} 20v6")),
        MarkKind::Finished(Stop | StopString | Length) => ("mark-end", format!("M{x} 4v18")),
        MarkKind::Finished(_) => ("mark-cross", format!("M{} 9l8 8m0 -8l-8 8", px(x + 3.0))),
    };
    let _ = write!(out, r#"<path class="{class}" d="{path}"/>"#);
}

/// The vertical lines of the axis, `height` high, behind lanes and steps.
pub fn grid(ticks: &[AxisTick], height: f64) -> String {
    let mut path = String::new();
    for tick in ticks {
        let _ = write!(path, "M{} 0v{}", px(tick.x), px(height));
    }
    format!(r#"<path class="grid" d="{path}"/>"#)
}

/// The axis' labels.
pub fn axis(ticks: &[AxisTick], width: f64) -> String {
    let mut out = String::new();
    for tick in ticks {
        // Labels at the edges stay within.
        let anchor = match tick.x {
            x if x < 24.0 => "start",
            x if x > width - 24.0 => "end",
            _ => "middle",
        };
        let label = escaped(&tick.label);
        let _ = write!(
            out,
            r#"<text class="axis" x="{}" y="15" text-anchor="{anchor}">{label}</text>"#,
            px(tick.x)
        );
    }
    out
}

/// Prompt tokens above the line, decode rows beneath it, and what stood in admission's way at the bottom.
pub fn steps(strip: &StepStrip, width: f64) -> String {
    const MIDDLE: f64 = 36.0;
    const UP: f64 = 30.0;
    const DOWN: f64 = 22.0;
    let (mut prefill, mut decode, mut failed, mut evicted) =
        (String::new(), String::new(), String::new(), String::new());
    let mut obstacles = Paths::default();
    let height = |value: u32, most: u32, room: f64| match value {
        0 => 0.0,
        value => (f64::from(value) / f64::from(most.max(1)) * room).max(2.0),
    };
    for bar in &strip.bars {
        // A gap of a pixel where there is room for one tells steps apart.
        let w = if bar.w >= 4.0 { bar.w - 1.0 } else { bar.w };
        let up = height(bar.prefill_tokens, strip.most_prefill, UP);
        let down = height(bar.decode_rows, strip.most_decode, DOWN);
        boxed(&mut prefill, bar.x, MIDDLE - up, w, up);
        boxed(&mut decode, bar.x, MIDDLE, w, down);
        if let Some(obstacle) = bar.obstacle {
            boxed(obstacles.of(obstacle_class(obstacle)), bar.x, 64.0, bar.w, 5.0);
        }
        if bar.failed {
            let _ = write!(failed, "M{} 2l6 6m0 -6l-6 6M{} 2v60", px(bar.x), px(bar.x + 3.0));
        }
        if bar.preempted > 0 {
            let _ = write!(evicted, "M{} 9l-4 -7h8z", px(bar.x + w / 2.0));
        }
    }
    let mut out = String::new();
    let _ = write!(out, r#"<path class="base" d="M0 {MIDDLE}h{}"/>"#, px(width));
    for (class, path) in [("part-prefill", prefill), ("part-decode", decode)] {
        let _ = write!(out, r#"<path class="{class}" d="{path}"/>"#);
    }
    obstacles.write(&mut out);
    let _ =
        write!(out, r#"<path class="mark-evicted" d="{evicted}"/><path class="mark-cross" d="{failed}"/>"#);
    out
}

fn obstacle_class(obstacle: Obstacle) -> &'static str {
    super::part::Part::Queue(Some(Cause::from(obstacle))).class()
}

/// A curve of values from 0 to 1, gaps where there is none, in a box of 120 by 28.
pub fn sparkline(curve: &[Option<f64>]) -> String {
    let step = 120.0 / (curve.len().max(2) - 1) as f64;
    let (mut line, mut dots, mut before) = (String::new(), String::new(), None);
    for (idx, value) in curve.iter().enumerate() {
        let point = value.map(|value| (idx as f64 * step, 26.0 - 24.0 * value));
        if let Some((x, y)) = point {
            let alone = before.is_none() && curve.get(idx + 1).is_none_or(Option::is_none);
            let _ = match (alone, before) {
                (true, _) => write!(dots, "M{} {}h0", px(x), px(y)),
                (false, None) => write!(line, "M{} {}", px(x), px(y)),
                (false, Some(())) => write!(line, "L{} {}", px(x), px(y)),
            };
        }
        before = point.map(|_| ());
    }
    format!(r#"<path class="spark" d="{line}"/><path class="spark-dot" d="{dots}"/>"#)
}

/// A chart in a box of 380 by 210, axes and all.
pub fn chart(chart: &Chart) -> String {
    const LEFT: f64 = 58.0;
    const TOP: f64 = 10.0;
    const WIDE: f64 = 308.0;
    const HIGH: f64 = 150.0;
    let (x, y) = (|x: f64| px(LEFT + WIDE * x), |y: f64| px(TOP + HIGH * (1.0 - y)));
    let mut out = String::new();
    for (at, label) in &chart.y_ticks {
        let _ = write!(out, r#"<path class="grid" d="M{LEFT} {}h{WIDE}"/>"#, y(*at));
        let _ = write!(
            out,
            r#"<text class="axis" x="{}" y="{}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            y(*at) + 4.0,
            escaped(label)
        );
    }
    let mut last = f64::NEG_INFINITY;
    for (at, label) in &chart.x_ticks {
        // Labels that would run into each other are left out, their ticks stay.
        let _ = write!(out, r#"<path class="base" d="M{} {}v4"/>"#, x(*at), TOP + HIGH);
        let room = 8.0 * label.len() as f64;
        if x(*at) - last >= room {
            last = x(*at);
            let _ = write!(
                out,
                r#"<text class="axis" x="{last}" y="{}" text-anchor="middle">{}</text>"#,
                TOP + HIGH + 18.0,
                escaped(label)
            );
        }
    }
    let _ = write!(out, r#"<path class="base" d="M{LEFT} {}h{WIDE}"/>"#, TOP + HIGH);
    let name = escaped(chart.x_name);
    let _ = write!(
        out,
        r#"<text class="axis" x="{}" y="{}" text-anchor="middle">{name}</text>"#,
        LEFT + WIDE / 2.0,
        TOP + HIGH + 40.0
    );
    let (mut ranges, mut line, mut dots) = (String::new(), String::new(), String::new());
    for (idx, point) in chart.points.iter().enumerate() {
        let _ = write!(ranges, "M{} {}V{}", x(point.x), y(point.low), y(point.high));
        if chart.line.is_empty() {
            let _ = write!(line, "{}{} {}", if idx == 0 { 'M' } else { 'L' }, x(point.x), y(point.y));
        }
        let _ = write!(dots, r#"<circle class="dot" cx="{}" cy="{}" r="4.5"/>"#, x(point.x), y(point.y));
    }
    for (idx, point) in chart.line.iter().enumerate() {
        let _ = write!(line, "{}{} {}", if idx == 0 { 'M' } else { 'L' }, x(point.0), y(point.1));
    }
    let _ = write!(out, r#"<path class="range" d="{ranges}"/><path class="curve" d="{line}"/>{dots}"#);
    out
}

/// The hatch of waste, to be put into one `<defs>` of a document.
pub const HATCH: &str = r#"<pattern id="waste" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch" width="2.4" height="6"/></pattern>"#;

/// A whole picture as an SVG document of its own.
pub struct Picture<'p> {
    /// Of lanes, steps and axis, in pixels.
    pub width: f64,
    /// Beside each lane.
    pub labels: &'p [String],
    /// [`lane`]s.
    pub lanes: &'p [String],
    /// [`steps`].
    pub steps: &'p str,
    /// Of the axis.
    pub ticks: &'p [AxisTick],
    /// Colours: the style sheet of the classes.
    pub style: &'p str,
    /// Under the picture.
    pub caption: &'p str,
}

impl Picture<'_> {
    /// Width and height of the document.
    pub fn size(&self) -> (f64, f64) {
        let height = AXIS_HEIGHT + LANE_HEIGHT * self.lanes.len() as f64 + STEPS_HEIGHT + 34.0;
        (self.width + LABELS + 16.0, height)
    }

    /// The document.
    pub fn svg(&self) -> String {
        let (width, height) = self.size();
        let lanes_end = AXIS_HEIGHT + LANE_HEIGHT * self.lanes.len() as f64;
        let mut out = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}"><style>{2}</style><defs>{HATCH}<clipPath id="plot"><rect width="{3}" height="{1}"/></clipPath></defs><rect class="paper" width="{0}" height="{1}"/>"#,
            px(width),
            px(height),
            self.style,
            px(self.width)
        );
        let _ = write!(
            out,
            r#"<g transform="translate({LABELS} 0)"><g clip-path="url(#plot)">{}"#,
            axis(self.ticks, self.width)
        );
        let _ = write!(
            out,
            r#"<g transform="translate(0 {AXIS_HEIGHT})">{}</g>"#,
            grid(self.ticks, height - AXIS_HEIGHT - 34.0)
        );
        for (idx, lane) in self.lanes.iter().enumerate() {
            let y = AXIS_HEIGHT + LANE_HEIGHT * idx as f64;
            let _ = write!(out, r#"<g transform="translate(0 {y})">{lane}</g>"#);
        }
        let _ = write!(out, r#"<g transform="translate(0 {lanes_end})">{}</g></g></g>"#, self.steps);
        for (idx, label) in self.labels.iter().enumerate() {
            let y = AXIS_HEIGHT + LANE_HEIGHT * idx as f64 + 17.0;
            let _ = write!(out, r#"<text class="axis" x="8" y="{y}">{}</text>"#, escaped(label));
        }
        let _ = write!(out, r#"<text class="axis" x="8" y="{}">steps</text>"#, lanes_end + 40.0);
        let _ = write!(
            out,
            r#"<text class="axis" x="8" y="{}">{}</text></svg>"#,
            px(height - 12.0),
            escaped(self.caption)
        );
        out
    }
}

/// Room for the labels of a picture.
const LABELS: f64 = 150.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::axis::Viewport;
    use crate::view::{cut, fixtures, lanes};

    #[test]
    fn a_lane_has_few_elements_and_no_word_that_is_no_number() {
        for story in fixtures::stories() {
            let cut = cut::cut(&story.record, &story.steps, story.now);
            let view = Viewport::fit(cut.from().unwrap_or(0), cut.to().unwrap_or(0), 900.0);
            let svg = lane(&lanes::lane(&cut, &story.record.token_at, &view));
            assert!(svg.matches('<').count() <= 40, "{}: {svg}", story.name);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", story.name);
            let strip = steps(&super::super::steps::strip(&story.steps, &view), 900.0);
            assert!(strip.matches('<').count() <= 12 && !strip.contains("NaN"), "{strip}");
        }
    }

    #[test]
    fn names_from_elsewhere_are_escaped_in_a_picture() {
        let labels = ["<script>\"&'\u{7}".to_owned()];
        let picture = Picture {
            width: 300.0,
            labels: &labels,
            lanes: &[String::new()],
            steps: "",
            ticks: &[],
            style: "",
            caption: "a < b",
        };
        let svg = picture.svg();
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;&quot;&amp;&#39; "), "{svg}");
        assert!(svg.contains("a &lt; b"));
    }
}
