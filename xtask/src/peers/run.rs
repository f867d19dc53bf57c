//! What was measured: read from what the measuring scripts print, and made into figures with their spread.
//!
//! Never shows anything. Invariant: a row has figures only where every one of its rounds had them.

use std::collections::BTreeMap;

use super::Peer;

/// One measurement: what its script told, figures and words.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    figures: BTreeMap<String, f64>,
    /// Everything, as it was told.
    pub words: BTreeMap<String, String>,
}

impl Run {
    /// Reads `NAME=VALUE` lines, among which all `needed` ones must be, as positive numbers.
    ///
    /// # Errors
    /// The script says why it could not measure, or does not say a figure.
    pub fn read(text: &str, needed: &[&str]) -> Result<Self, String> {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let words: BTreeMap<String, String> =
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if let Some(reason) = words.get("failed") {
            return Err(reason.clone());
        }
        let figure = |name: &&str| {
            let read: Option<f64> = words.get(*name).and_then(|value| value.parse().ok());
            let read = read.filter(|value| *value > 0.0 && value.is_finite());
            let figure = read.ok_or_else(|| format!("the measurement has no `{name}`"))?;
            Ok::<_, String>(((*name).to_owned(), figure))
        };
        Ok(Self { figures: needed.iter().map(figure).collect::<Result<_, _>>()?, words })
    }

    /// A needed figure.
    fn figure(&self, name: &str) -> f64 {
        self.figures.get(name).copied().unwrap_or(f64::NAN)
    }

    pub fn word(&self, name: &str) -> Option<&str> {
        self.words.get(name).map(String::as_str)
    }
}

/// How a column's figure is made of what was told. Times were told in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// As it is.
    Count(&'static str),
    /// In seconds: the less the better.
    Seconds(&'static str),
    /// So many a second: the more the better.
    Rate(&'static str, &'static str),
    /// The same where the first one's instant begins the time: one is not counted.
    RateAfterFirst(&'static str, &'static str),
}

impl Figure {
    fn of(self, run: &Run) -> f64 {
        match self {
            Self::Count(name) => run.figure(name),
            Self::Seconds(name) => run.figure(name) / 1e3,
            Self::Rate(count, time) => run.figure(count) * 1e3 / run.figure(time),
            Self::RateAfterFirst(count, time) => (run.figure(count) - 1.0) * 1e3 / run.figure(time),
        }
    }

    /// How many times as good `ours` is.
    pub fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::Seconds(_) => theirs / ours,
            _ => ours / theirs,
        }
    }
}

/// A column of figures.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its title.
    pub head: &'static str,
    /// What the JSON calls it.
    pub key: &'static str,
    /// What stands in it.
    pub figure: Figure,
    /// The title of the column with the ratio to ours, where there is one.
    pub ratio: Option<&'static str>,
}

/// What a measurement of one field tells, and the columns of its table.
#[derive(Debug)]
pub struct Sheet {
    /// Figures that every measurement must have.
    pub needed: &'static [&'static str],
    /// In their order.
    pub columns: &'static [Column],
}

impl Sheet {
    pub fn heads(&self) -> Vec<String> {
        let ratios = self.columns.iter().filter_map(|column| column.ratio);
        let heads = ["engine", "backend", "weights"].into_iter();
        heads.chain(self.columns.iter().map(|column| column.head)).chain(ratios).map(str::to_owned).collect()
    }
}

/// One engine.
pub struct Row {
    pub peer: &'static Peer,
    pub runs: Vec<Run>,
    /// Why it has no figures.
    pub failed: Option<String>,
    /// What to know about them, found while it was made ready.
    pub remarks: Vec<String>,
}

impl Row {
    /// Before the first round.
    pub fn new(peer: &'static Peer) -> Self {
        Self { peer, runs: Vec::new(), failed: None, remarks: Vec::new() }
    }

    pub fn spread(&self, figure: Figure) -> Option<Spread> {
        match self.failed {
            Some(_) => None,
            None => Spread::of(self.runs.iter().map(|run| figure.of(run)).collect()),
        }
    }

    /// What the first measurement told.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.runs.first()?.word(name)
    }

    /// The middle one of what all measurements told under this name, as numbers.
    pub fn middle(&self, name: &str) -> Option<f64> {
        let told = |run: &Run| run.word(name).and_then(|word| word.parse::<f64>().ok());
        Spread::of(self.runs.iter().filter_map(told).collect()).map(|spread| spread.median)
    }

    /// The engine with its version.
    pub fn title(&self) -> String {
        format!("{} {}", self.peer.engine, self.word("version").unwrap_or_default()).trim_end().to_owned()
    }

    /// As it told, where that says more than we know beforehand.
    pub fn backend(&self) -> &str {
        self.word("backend").unwrap_or(self.peer.backend)
    }
}

/// The middle, the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// Of nothing there is none.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Self { median, least, most })
    }

    /// With the least and the most, where they are others.
    pub fn shown(self) -> String {
        match self.least < self.most {
            true => format!("{} ({}–{})", short(self.median), short(self.least), short(self.most)),
            false => short(self.median),
        }
    }
}

/// Three digits.
pub fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = "first=500\nrest=3000\nprompt=50\ntokens=16\ntext=A \"b\" = c\n";
    const NEEDED: &[&str] = &["first", "rest", "prompt", "tokens"];
    const PREFILL: Figure = Figure::Rate("prompt", "first");

    #[test]
    fn a_measurement_is_read_line_by_line() {
        let run = Run::read(TOLD, NEEDED).unwrap();
        assert_eq!((PREFILL.of(&run), run.word("text")), (100.0, Some("A \"b\" = c")));
        assert_eq!(Figure::RateAfterFirst("tokens", "rest").of(&run), 5.0);
        let check = |text: &str, expected: &str| {
            assert_eq!(Run::read(text, NEEDED).err().as_deref(), Some(expected), "{text}");
        };
        check("failed=no adapter\n", "no adapter");
        check(&TOLD.replace("first=500\n", ""), "the measurement has no `first`");
        check(&TOLD.replace("rest=3000", "rest=0"), "the measurement has no `rest`");
        check("", "the measurement has no `first`");
    }

    #[test]
    fn a_spread_is_the_middle_with_both_ends() {
        let check = |values: &[f64], expected: Option<&str>| {
            assert_eq!(Spread::of(values.to_vec()).map(Spread::shown).as_deref(), expected, "{values:?}");
        };
        check(&[], None);
        check(&[5.0], Some("5.00"));
        check(&[123.4, 1.0, 20.0], Some("20.0 (1.00–123)"));
        check(&[1.0, 2.0], Some("1.50 (1.00–2.00)"));
    }

    #[test]
    fn a_ratio_above_one_says_that_ours_is_the_better_one() {
        let check = |figure: Figure, ours: f64, theirs: f64, expected: f64| {
            assert_eq!(figure.ratio(ours, theirs), expected, "{figure:?}");
        };
        check(PREFILL, 100.0, 50.0, 2.0);
        check(Figure::Seconds("first"), 100.0, 50.0, 0.5);
    }
}
