//! A diagnosis for a person: the conditions, what stands out, what to look at next, and what was checked besides.
//!
//! Pure. Invariant: no finding stands without its evidence, and no figure without the conditions, which come first.

use firstlight_engine::report::diagnose::{Diagnosis, Finding, Silence};

use crate::bench::plot::wrapped;
use crate::bench::style::Style;

/// All lines.
pub fn lines(diagnosis: &Diagnosis, style: Style) -> Vec<String> {
    let mut page = Page { style, lines: Vec::new() };
    page.text("", &format!("now: {}", diagnosis.conditions));
    if let Some(earlier) = &diagnosis.earlier {
        page.text("", &format!("earlier: {earlier}"));
    }
    page.gap();
    page.heading(&diagnosis.summary());
    for finding in &diagnosis.findings {
        page.gap();
        page.finding(finding);
    }
    let groups = [
        (Silence::Nothing, "Checked, and nothing stands out:"),
        (Silence::TooLittle, "Too little to tell:"),
        (Silence::NotAsked, "Not asked:"),
    ];
    for (outcome, heading) in groups {
        let mut of_group = diagnosis.checked.iter().filter(|checked| checked.outcome == outcome).peekable();
        if of_group.peek().is_some() {
            page.gap();
            page.heading(heading);
        }
        for checked in of_group {
            page.text("  ", &format!("{}: {}", checked.symptom, checked.sentence));
        }
    }
    // Names are a stranger's, and none of them moves the cursor of whoever reads this.
    let is_wild = |c: char| c.is_control() && c != '\u{1b}';
    page.lines.into_iter().map(|line| line.replace(is_wild, " ")).collect()
}

struct Page {
    style: Style,
    lines: Vec<String>,
}

impl Page {
    fn gap(&mut self) {
        self.lines.push(String::new());
    }

    fn heading(&mut self, text: &str) {
        let text = text.replace(char::is_control, " ");
        self.lines.push(self.style.heading(&text));
    }

    /// One line where a program may read it, wrapped where a person does.
    fn text(&mut self, indent: &str, text: &str) {
        let text = text.replace(char::is_control, " ");
        match self.style == Style::PLAIN {
            true => self.lines.push(format!("{indent}{text}")),
            false => self.lines.extend(wrapped(&text, indent)),
        }
    }

    fn finding(&mut self, finding: &Finding) {
        self.heading(&format!("{}: {}", finding.stage.name(), finding.symptom));
        for sentence in &finding.evidence {
            self.text("  ", sentence);
        }
        let chance = match finding.p_value {
            None => "counted".to_owned(),
            Some(p) if p < 1e-4 => "p < 0.0001".to_owned(),
            Some(p) => format!("p {p:.4}"),
        };
        let certainty = finding.certainty.name();
        self.text("  ", &format!("{certainty}: {} (n {}, {chance})", finding.reason, finding.n));
        self.text("  ", &format!("look at: {}", finding.look_at));
    }
}
