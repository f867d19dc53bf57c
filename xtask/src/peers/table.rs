//! What was measured: read from the measuring script, put into a table for people and into JSON for programs.
//!
//! Invariant: a row has figures only where every one of its rounds had them.

use std::collections::BTreeMap;

use super::Peer;

/// One measurement. Times are milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    load: f64,
    warm: f64,
    first: f64,
    rest: f64,
    prompt_tokens: f64,
    tokens: f64,
    /// What the script told beside figures: version, adapter, text.
    words: BTreeMap<String, String>,
}

impl Run {
    /// Reads `NAME=VALUE` lines.
    ///
    /// # Errors
    /// The script says why it could not measure, or does not say a figure.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let words: BTreeMap<String, String> =
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if let Some(reason) = words.get("failed") {
            return Err(reason.clone());
        }
        let figure = |name: &str| {
            let read: Option<f64> = words.get(name).and_then(|value| value.parse().ok());
            read.filter(|value| *value > 0.0 && value.is_finite())
                .ok_or_else(|| format!("the measurement has no `{name}`"))
        };
        Ok(Self {
            load: figure("load")?,
            warm: figure("warm")?,
            first: figure("first")?,
            rest: figure("rest")?,
            prompt_tokens: figure("prompt_tokens")?,
            tokens: figure("tokens")?,
            words,
        })
    }

    /// Tokens a second until the first token of the answer.
    fn prefill(&self) -> f64 {
        self.prompt_tokens * 1e3 / self.first
    }

    /// Tokens a second after it.
    fn decode(&self) -> f64 {
        (self.tokens - 1.0) * 1e3 / self.rest
    }

    fn word(&self, name: &str) -> &str {
        self.words.get(name).map_or("", String::as_str)
    }
}

/// One engine.
pub struct Row {
    pub peer: &'static Peer,
    pub runs: Vec<Run>,
    /// Why it has no figures.
    pub failed: Option<String>,
}

impl Row {
    /// Before the first round.
    pub fn new(peer: &'static Peer) -> Self {
        Self { peer, runs: Vec::new(), failed: None }
    }

    fn spread(&self, of: impl Fn(&Run) -> f64) -> Option<Spread> {
        match self.failed {
            Some(_) => None,
            None => Spread::of(self.runs.iter().map(of).collect()),
        }
    }

    fn title(&self) -> String {
        let version = self.runs.first().map_or("", |run| run.word("version"));
        format!("{} {version}", self.peer.engine).trim_end().to_owned()
    }
}

/// The middle, the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
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
    fn shown(self) -> String {
        match self.least < self.most {
            true => format!("{} ({}–{})", short(self.median), short(self.least), short(self.most)),
            false => short(self.median),
        }
    }
}

/// Three digits.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// The table, and beneath it what is to be known about its rows.
pub fn lines(rows: &[Row]) -> Vec<String> {
    let heads = [
        "engine",
        "backend",
        "weights",
        "load s",
        "prompt",
        "first s",
        "prefill tok/s",
        "decode tok/s",
        "ours: prefill",
        "decode",
    ];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let mut notes = Vec::new();
    let ours = rows.first();
    for row in rows {
        let peer = row.peer;
        let mut cells = vec![row.title(), peer.backend.to_owned(), peer.weights.to_owned()];
        if let Some(figures) = figures(row, ours) {
            cells.extend(figures);
        } else {
            cells.extend(std::iter::repeat_n("-".to_owned(), heads.len() - cells.len()));
        }
        notes.extend(remarks(row, ours).into_iter().map(|remark| format!("{}: {remark}", peer.name)));
        table.push(cells);
    }
    let mut lines = aligned(&table);
    lines.extend(notes);
    lines
}

fn figures(row: &Row, ours: Option<&Row>) -> Option<[String; 7]> {
    let seconds = |of: fn(&Run) -> f64| row.spread(|run| of(run) / 1e3);
    let ratio = |of: fn(&Run) -> f64| {
        let ratio = ours?.spread(of)?.median / row.spread(of)?.median;
        Some(format!("{}x", short(ratio)))
    };
    let ratio = |of| ratio(of).unwrap_or_else(|| "-".to_owned());
    Some([
        seconds(|run| run.load)?.shown(),
        short(row.spread(|run| run.prompt_tokens)?.median).trim_end_matches(".0").to_owned(),
        seconds(|run| run.first)?.shown(),
        row.spread(Run::prefill)?.shown(),
        row.spread(Run::decode)?.shown(),
        ratio(Run::prefill),
        ratio(Run::decode),
    ])
}

/// Sentences about a row.
fn remarks(row: &Row, ours: Option<&Row>) -> Vec<String> {
    if let Some(reason) = &row.failed {
        return vec![format!("not measured: {reason}")];
    }
    let mut remarks = Vec::new();
    let said = |row: &Row| row.runs.first().map(|run| (run.tokens, run.word("text").to_owned()));
    if let (Some((tokens, text)), Some((usual, expected))) = (said(row), ours.and_then(said)) {
        if tokens < usual {
            remarks.push(format!("{tokens} tokens instead of {usual}, because each takes so long"));
        }
        if !expected.starts_with(&text) && !text.starts_with(&expected) {
            remarks.push(format!("it answered \"{text}\", Firstlight \"{expected}\""));
        }
    }
    if !row.peer.remark.is_empty() {
        remarks.push(row.peer.remark.to_owned());
    }
    remarks
}

/// Columns of the same width; figures to the right.
fn aligned(table: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0..3 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    table.iter().map(line).collect()
}

/// Every figure of every round.
pub fn json(rows: &[Row]) -> String {
    let rows: Vec<String> = rows.iter().map(row_json).collect();
    format!("{{\"schema\":\"firstlight.peers/1\",\"rows\":[\n{}\n]}}\n", rows.join(",\n"))
}

fn row_json(row: &Row) -> String {
    let peer = row.peer;
    let text = |name: &str, value: &str| format!("{}:{}", quoted(name), quoted(value));
    let mut fields = vec![
        text("name", peer.name),
        text("engine", peer.engine),
        text("backend", peer.backend),
        text("weights", peer.weights),
    ];
    match &row.failed {
        Some(reason) => fields.push(text("failed", reason)),
        None => {
            for (name, spread) in [("prefill", row.spread(Run::prefill)), ("decode", row.spread(Run::decode))]
            {
                fields.extend(
                    spread.map(|spread| format!("\"{name}_tokens_per_second\":{:.4}", spread.median)),
                );
            }
        }
    }
    let runs: Vec<String> = row.runs.iter().map(run_json).collect();
    fields.push(format!("\"runs\":[{}]", runs.join(",")));
    format!("{{{}}}", fields.join(","))
}

fn run_json(run: &Run) -> String {
    let field = |(name, value): (&String, &String)| match value.parse::<f64>() {
        // Digits may be words too: a version, an answer.
        Ok(number) if number.is_finite() && !["version", "text"].contains(&name.as_str()) => {
            format!("{}:{number}", quoted(name))
        }
        _ => format!("{}:{}", quoted(name), quoted(value)),
    };
    format!("{{{}}}", run.words.iter().map(field).collect::<Vec<_>>().join(","))
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = "load=2000\nwarm=1\nfirst=500\nrest=3000\nprompt_tokens=50\ntokens=16\nversion=1.2.3\ntext=A \"b\" = c\n";

    fn told(first: &str) -> Run {
        Run::read(&TOLD.replace("first=500", first)).unwrap()
    }

    #[test]
    fn a_measurement_is_read_line_by_line() {
        let run = told("first=500");
        assert_eq!((run.prefill(), run.decode(), run.word("text")), (100.0, 5.0, "A \"b\" = c"));
        let check = |text: &str, expected: &str| {
            assert_eq!(Run::read(text).err().as_deref(), Some(expected), "{text}");
        };
        check("failed=no adapter\n", "no adapter");
        check(&TOLD.replace("first=500\n", ""), "the measurement has no `first`");
        check(&TOLD.replace("rest=3000", "rest=0"), "the measurement has no `rest`");
        check("", "the measurement has no `load`");
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
    fn every_row_is_in_the_table_with_figures_or_with_its_reason() {
        let [ours, slow, broken] = [0, 1, 2].map(|idx| &super::super::PEERS[idx]);
        let rows = [
            Row { runs: vec![told("first=500"), told("first=1000"), told("first=250")], ..Row::new(ours) },
            Row { runs: vec![told("first=1000")], ..Row::new(slow) },
            Row { failed: Some("no network".to_owned()), ..Row::new(broken) },
        ];
        let lines = lines(&rows);
        assert!(lines[1].contains("100 (50.0–200)") && lines[1].ends_with("1.00x   1.00x"), "{}", lines[1]);
        assert!(lines[2].ends_with("2.00x   1.00x"), "{}", lines[2]);
        assert!(lines[3].ends_with('-'), "{}", lines[3]);
        assert_eq!(lines[4], format!("{}: not measured: no network", broken.name));
        let json = json(&rows);
        assert!(json.contains("\"failed\":\"no network\"") && json.contains("\"first\":250"), "{json}");
        assert!(json.contains("\"version\":\"1.2.3\""), "{json}");
    }
}
