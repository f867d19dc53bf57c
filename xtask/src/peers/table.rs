//! Measurements as tables for people and as JSON for programs.
//!
//! Never measures or rounds what others compute with. Invariant: every row is in both, with its figures or with its reason.

use super::run::{Column, Figure, Row, Run, Sheet, short};

/// The table, and beneath it what is to be known about its rows. Ours is the first one.
pub fn lines(sheet: &Sheet, rows: &[Row]) -> Vec<String> {
    let heads = sheet.heads();
    let width = heads.len();
    let mut table = vec![heads];
    let mut notes = Vec::new();
    let ours = rows.first();
    for row in rows {
        let mut cells = vec![row.title(), row.backend().to_owned(), row.peer.weights.to_owned()];
        cells.extend(figures(sheet, row, ours).unwrap_or_default());
        cells.resize(width, "-".to_owned());
        notes.extend(remarks(row, ours).into_iter().map(|remark| format!("{}: {remark}", row.peer.name)));
        table.push(cells);
    }
    let mut lines = aligned(&table);
    lines.extend(notes);
    lines
}

fn figures(sheet: &Sheet, row: &Row, ours: Option<&Row>) -> Option<Vec<String>> {
    let shown = |column: &Column| {
        let spread = row.spread(column.figure)?;
        Some(match column.figure {
            Figure::Count(_) => format!("{:.0}", spread.median),
            _ => spread.shown(),
        })
    };
    let ratio = |column: &Column| {
        let (ours, theirs) = (ours?.spread(column.figure)?, row.spread(column.figure)?);
        Some(format!("{}x", short(column.figure.ratio(ours.median, theirs.median))))
    };
    let ratios = sheet.columns.iter().filter(|column| column.ratio.is_some());
    let mut cells: Vec<String> = sheet.columns.iter().map(shown).collect::<Option<_>>()?;
    cells.extend(ratios.map(|column| ratio(column).unwrap_or_else(|| "-".to_owned())));
    Some(cells)
}

/// Sentences about a row.
fn remarks(row: &Row, ours: Option<&Row>) -> Vec<String> {
    if let Some(reason) = &row.failed {
        return vec![format!("not measured: {reason}")];
    }
    let mut remarks = Vec::new();
    if let Some(ours) = ours {
        if let (Some(tokens), Some(usual)) = (row.middle("tokens"), ours.middle("tokens"))
            && tokens < usual
        {
            remarks.push(format!("{tokens} tokens instead of {usual}, because each takes so long"));
        }
        if let (Some(text), Some(expected)) = (row.word("text"), ours.word("text"))
            && !expected.starts_with(text)
            && !text.starts_with(expected)
        {
            remarks.push(format!("it answered \"{text}\", Firstlight \"{expected}\""));
        }
        if let (Some(answers), Some(expected)) = (row.word("answers"), ours.word("answers"))
            && let (alike, all) = agreement(answers, expected)
            && alike < all
        {
            remarks.push(format!(
                "{alike} of its {all} answers are Firstlight's, over the tokens that both made"
            ));
        }
    }
    if let (Some(queue), Some(compute)) = (row.middle("queue"), row.middle("compute")) {
        let [queue, compute] = [queue, compute].map(|time| short(time / 1e3));
        remarks.push(format!("of its mean TTFT {queue} s are waiting for a slot and {compute} s prefill"));
    }
    remarks.extend(row.remarks.iter().cloned());
    if !row.peer.remark.is_empty() {
        remarks.push(row.peer.remark.to_owned());
    }
    remarks
}

/// How many of the answers `1,2/3,4/...` are alike as far as both go, and how many there are.
fn agreement(answers: &str, expected: &str) -> (usize, usize) {
    let pairs: Vec<(&str, &str)> = answers.split('/').zip(expected.split('/')).collect();
    let alike = |(one, other): &&(&str, &str)| one.split(',').zip(other.split(',')).all(|(a, b)| a == b);
    (pairs.iter().filter(alike).count(), pairs.len())
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

/// Every figure of every round of every field, which are named.
pub fn json(fields: &[(&str, &Sheet, &[Row])]) -> String {
    let rows: Vec<String> = fields
        .iter()
        .flat_map(|(name, sheet, rows)| rows.iter().map(move |row| row_json(name, sheet, row)))
        .collect();
    format!("{{\"schema\":\"firstlight.peers/1\",\"rows\":[\n{}\n]}}\n", rows.join(",\n"))
}

fn row_json(field: &str, sheet: &Sheet, row: &Row) -> String {
    let peer = row.peer;
    let text = |name: &str, value: &str| format!("{}:{}", quoted(name), quoted(value));
    let mut fields = vec![
        text("field", field),
        text("name", peer.name),
        text("engine", peer.engine),
        text("backend", row.backend()),
        text("weights", peer.weights),
    ];
    fields.extend(row.failed.as_ref().map(|reason| text("failed", reason)));
    let median = |column: &Column| {
        row.spread(column.figure).map(|spread| format!("{}:{:.4}", quoted(column.key), spread.median))
    };
    fields.extend(sheet.columns.iter().filter_map(median));
    let runs: Vec<String> = row.runs.iter().map(run_json).collect();
    fields.push(format!("\"runs\":[{}]", runs.join(",")));
    format!("{{{}}}", fields.join(","))
}

fn run_json(run: &Run) -> String {
    /// Digits may be words too.
    const WORDS: [&str; 4] = ["version", "text", "answers", "backend"];
    let field = |(name, value): (&String, &String)| match value.parse::<f64>() {
        Ok(number) if number.is_finite() && !WORDS.contains(&name.as_str()) => {
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

    const TOLD: &str = "first=500\nrest=3000\nprompt=50\ntokens=16\nversion=1.2.3\ntext=A \"b\" = c\n";
    const PREFILL: Figure = Figure::Rate("prompt", "first");
    const SHEET: Sheet = Sheet {
        needed: &["first", "rest", "prompt", "tokens"],
        columns: &[
            Column {
                head: "first s",
                key: "first",
                figure: Figure::Seconds("first"),
                ratio: Some("ours: first"),
            },
            Column { head: "prompt", key: "prompt", figure: Figure::Count("prompt"), ratio: None },
            Column { head: "prefill", key: "prefill", figure: PREFILL, ratio: Some("prefill") },
        ],
    };

    fn told(first: &str) -> Run {
        Run::read(&TOLD.replace("first=500", first), SHEET.needed).unwrap()
    }

    fn row(idx: usize, runs: Vec<Run>) -> Row {
        Row { runs, ..Row::new(&super::super::browser::PEERS[idx]) }
    }

    #[test]
    fn answers_agree_as_far_as_both_go() {
        let check = |answers: &str, expected: &str, both: (usize, usize)| {
            assert_eq!(agreement(answers, expected), both, "{answers} and {expected}");
        };
        check("1,2/3,4", "1,2,9/3,4,9", (2, 2));
        check("1,2/3,5", "1,2,9/3,4,9", (1, 2));
        check("12", "1,2", (0, 1));
    }

    #[test]
    fn every_row_is_in_the_table_with_figures_or_with_its_reason() {
        let rows = [
            row(0, vec![told("first=500"), told("first=1000"), told("first=250")]),
            Row { remarks: vec!["new".to_owned()], ..row(1, vec![told("first=1000")]) },
            Row { failed: Some("no network".to_owned()), ..row(2, Vec::new()) },
        ];
        let lines = lines(&SHEET, &rows);
        assert!(lines[0].ends_with("prefill  ours: first  prefill"), "{}", lines[0]);
        assert!(
            lines[1].contains("50  100 (50.0–200)") && lines[1].ends_with("1.00x    1.00x"),
            "{}",
            lines[1]
        );
        assert!(lines[2].ends_with("2.00x    2.00x"), "{}", lines[2]);
        assert!(lines[3].ends_with('-'), "{}", lines[3]);
        let names = [1, 2].map(|idx: usize| rows[idx].peer.name);
        let notes = [format!("{}: new", names[0]), format!("{}: not measured: no network", names[1])];
        assert_eq!(lines[4..], notes);
        let json = json(&[("browser", &SHEET, &rows)]);
        assert!(json.contains("\"failed\":\"no network\"") && json.contains("\"first\":250"), "{json}");
        assert!(json.contains("\"version\":\"1.2.3\"") && json.contains("\"prefill\":100.0"), "{json}");
    }

    #[test]
    fn what_a_row_says_beside_its_figures_is_said_beneath() {
        let check = |ours: &str, theirs: &str, expected: &[&str]| {
            let run = |more: &str| vec![Run::read(&format!("{TOLD}{more}"), SHEET.needed).unwrap()];
            assert_eq!(remarks(&row(1, run(theirs)), Some(&row(0, run(ours)))), expected, "{theirs}");
        };
        check("", "", &[]);
        check("tokens=64", "tokens=8", &["8 tokens instead of 64, because each takes so long"]);
        check("text=no", "", &["it answered \"A \"b\" = c\", Firstlight \"no\""]);
        check(
            "answers=1/2",
            "answers=1/3",
            &["1 of its 2 answers are Firstlight's, over the tokens that both made"],
        );
        let split = "of its mean TTFT 1.50 s are waiting for a slot and 0.50 s prefill";
        check("", "queue=1500\ncompute=500", &[split]);
    }
}
