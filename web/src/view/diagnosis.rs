//! A diagnosis in the sentences that the page shows.
//!
//! The judging is the engine's. Invariant: no finding stands without its evidence.

use firstlight_engine::report::diagnose::{Diagnosis, Finding};

use crate::protocol::Diagnosis as Told;

/// All of `diagnosis` in sentences.
pub fn told(diagnosis: &Diagnosis) -> Told {
    let earlier = diagnosis.earlier.iter().map(|earlier| format!("earlier: {earlier}"));
    Told {
        summary: diagnosis.summary(),
        conditions: std::iter::once(diagnosis.conditions.to_string()).chain(earlier).collect(),
        findings: diagnosis.findings.iter().map(finding).collect(),
        checked: diagnosis
            .checked
            .iter()
            .map(|one| [one.symptom.to_string(), one.sentence.clone()])
            .collect(),
    }
}

fn finding(finding: &Finding) -> Vec<String> {
    let mut sentences = vec![format!("{}: {}", finding.stage.name(), finding.symptom)];
    sentences.extend(finding.evidence.iter().cloned());
    sentences.push(format!("{}: {} (n {})", finding.certainty.name(), finding.reason, finding.n));
    sentences.push(format!("Look at: {}", finding.look_at));
    sentences
}

#[cfg(test)]
mod tests {
    use firstlight_engine::report::ReportContext;

    use crate::protocol::Event;
    use crate::view::history::History;
    use crate::view::history::tests::answered;

    #[test]
    fn an_empty_history_is_too_little_to_tell() {
        let mut history =
            History::new(ReportContext { adapter: "an adapter".into(), ..ReportContext::default() });
        for halves in [false, true] {
            history.push(answered(1, 0, &[(0, 5), (1, 9)]));
            let Event::Diagnosis(told) = history.diagnose(halves, false) else { panic!() };
            assert!(told.summary.starts_with("too little to tell"), "{told:?}");
            assert!(told.conditions[0].contains("an adapter"), "{told:?}");
            assert_eq!(
                (told.findings.len(), told.checked.len(), told.conditions.len()),
                (0, 8, 1 + usize::from(halves))
            );
        }
    }
}
