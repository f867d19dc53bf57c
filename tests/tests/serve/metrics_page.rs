//! The page of metrics, read as strictly as Prometheus' own checker does, and the dashboard that is drawn from it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::server::Server;

/// A page that was found to be well-formed: series by name, with their labels and values.
pub struct Page {
    pub series: Vec<(String, BTreeMap<String, String>, f64)>,
    kinds: BTreeMap<String, String>,
}

impl Page {
    pub fn of(server: &Server) -> Self {
        let answer = server.send(ureq::http::Request::get(server.url("/metrics")).body(Vec::new()));
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        Self::read(&String::from_utf8(answer.body).expect("text"))
    }

    /// Panics where the text is not of the format.
    fn read(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has an end");
        let (mut series, mut kinds, mut helped) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let mut seen = BTreeSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# HELP ") {
                let (name, help) = head.split_once(' ').expect("a help has words");
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{name} is explained once");
                current = name.to_owned();
            } else if let Some(head) = line.strip_prefix("# TYPE ") {
                let (name, kind) = head.split_once(' ').expect("a type has a name");
                assert_eq!(name, current, "the type follows its help");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has one type");
            } else {
                let (name, labels, value) = sample(line);
                let kind = kinds.get(&current).unwrap_or_else(|| panic!("no type before {line}"));
                let rest = name.strip_prefix(&current).unwrap_or_else(|| panic!("{line} is under {current}"));
                let fits = match kind.as_str() {
                    "histogram" => ["_bucket", "_sum", "_count"].contains(&rest),
                    "counter" => rest.is_empty() && name.ends_with("_total"),
                    _ => rest.is_empty() && !name.ends_with("_total"),
                };
                assert!(fits, "{line} is no line of a {kind}");
                assert!(seen.insert((name.clone(), labels.clone())), "{line} stands twice");
                series.push((name, labels, value));
            }
        }
        let page = Self { series, kinds };
        page.kinds
            .iter()
            .filter(|(_, kind)| *kind == "histogram")
            .for_each(|(name, _)| page.check_histogram(name));
        page
    }

    /// Buckets rise in bound and in count, and the last of them has all.
    fn check_histogram(&self, name: &str) {
        let mut buckets: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
        for (_, labels, value) in self.series.iter().filter(|(known, ..)| *known == format!("{name}_bucket"))
        {
            let mut labels = labels.clone();
            let bound = labels.remove("le").expect("a bucket has a bound");
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a number") };
            buckets.entry(labels).or_default().push((bound, *value));
        }
        for (labels, buckets) in buckets {
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?} {buckets:?}");
            let last = buckets.last().copied().expect("there are buckets");
            let of = |suffix: &str| {
                let mut same = self.series.iter();
                same.find(|(known, own, _)| *known == format!("{name}{suffix}") && *own == labels)
                    .map(|s| s.2)
            };
            assert_eq!((last.0, Some(last.1)), (f64::INFINITY, of("_count")), "{name} {labels:?}");
            assert!(of("_sum").is_some(), "{name} {labels:?} has a sum");
        }
    }

    /// The sum over all series of this name with this label, or with any if it is empty.
    pub fn sum(&self, name: &str, label: (&str, &str)) -> f64 {
        let fits = |labels: &BTreeMap<String, String>| {
            label.0.is_empty() || labels.get(label.0).is_some_and(|value| value == label.1)
        };
        let mut found =
            self.series.iter().filter(|(known, labels, _)| known == name && fits(labels)).peekable();
        assert!(found.peek().is_some(), "{name} {label:?} is on the page");
        found.map(|(_, _, value)| value).sum()
    }
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let is_word = |text: &str| {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(word)
    };
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} has no value"));
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line:?} has no number"));
    let (name, mut rest) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').expect("labels are closed")),
        None => (series, ""),
    };
    assert!(is_word(name) && value.is_finite(), "{line}");
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect("a label has a value");
        let (mut text, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().expect("a value is closed") {
                (at, '"') => break at,
                (_, '\\') => text.extend(chars.next().map(|(_, c)| if c == 'n' { '\n' } else { c })),
                (_, c) => text.push(c),
            }
        };
        assert!(is_word(label) && labels.insert(label.to_owned(), text).is_none(), "{line}");
        rest = after[end + 1..].strip_prefix(',').unwrap_or(&after[end + 1..]);
    }
    (name.to_owned(), labels, value)
}

const DASHBOARD: &str = include_str!("../../../native/deploy/grafana-dashboard.json");

/// Whoever scrapes adds these.
const OF_THE_SCRAPER: [&str; 2] = ["instance", "job"];

/// Every metric that the dashboard asks for is on the page, with every label that it is asked by.
pub fn check_dashboard(page: &Page) {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("a list").iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let of_panels = targets.map(|target| target["expr"].as_str().expect("an expression").to_owned());
    let variables = dashboard["templating"]["list"].as_array().expect("a list").iter();
    let of_variables =
        variables.filter_map(|variable| variable["query"]["query"].as_str().map(str::to_owned));
    let all: Vec<String> = of_panels.chain(of_variables).collect();
    assert!(all.len() > 20, "the dashboard asks for much");
    for expression in all {
        for (metric, labels) in asked(&expression) {
            let mut found = page.series.iter().filter(|(name, ..)| *name == metric).peekable();
            assert!(found.peek().is_some(), "{metric} is not on the page: {expression}");
            let known: BTreeSet<&str> =
                found.flat_map(|(_, labels, _)| labels.keys().map(String::as_str)).collect();
            for label in labels.iter().filter(|label| !OF_THE_SCRAPER.contains(&label.as_str())) {
                assert!(known.contains(label.as_str()), "{metric} has no {label}: {expression}");
            }
        }
    }
}

/// The metrics of an expression, each with the labels that it is chosen or grouped by.
fn asked(expression: &str) -> Vec<(String, BTreeSet<String>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut all = Vec::new();
    let mut groups: BTreeSet<String> = BTreeSet::new();
    let mut rest = expression;
    while let Some(at) = rest.find(is_word) {
        rest = &rest[at..];
        let (word, after) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
        rest = after;
        if word == "by" {
            let list = after.trim_start().strip_prefix('(').and_then(|list| list.split_once(')'));
            groups = list.expect("by has a list").0.split(',').map(|label| label.trim().to_owned()).collect();
        } else if word.starts_with("firstlight_") || word.starts_with("process_") {
            let mut labels = std::mem::take(&mut groups);
            if let Some((chosen, after)) = after.strip_prefix('{').and_then(|list| list.split_once('}')) {
                let names = chosen.split(',').filter_map(|one| one.split(['=', '!']).next());
                labels.extend(names.map(|name| name.trim().to_owned()));
                rest = after;
            }
            all.push((word.to_owned(), labels));
        }
    }
    all
}

#[test]
fn a_page_that_breaks_the_format_is_found_out() {
    let head = "# HELP a_total x\n# TYPE a_total counter\n";
    let histogram = "# HELP h x\n# TYPE h histogram\n";
    let right = format!(
        "{head}a_total{{b=\"c\\\"\\\\\\n\"}} 1\n{histogram}h_bucket{{le=\"1\"}} 1\nh_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 2\n"
    );
    let page = Page::read(&right);
    assert_eq!(page.series[0].1["b"], "c\"\\\n");
    for wrong in [
        "a_total 1\n".to_owned(),
        format!("{head}a_total 1"),
        format!("{head}a_total 1\na_total 2\n"),
        format!("{head}{head}a_total 1\n"),
        format!("{head}b_total 1\n"),
        format!("{head}a_total NaN\n"),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 1\n"),
        format!("{histogram}h_bucket{{le=\"1\"}} 3\nh_bucket{{le=\"+Inf\"}} 2\nh_sum 3\nh_count 2\n"),
        format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_sum 3\nh_count 2\n"),
    ] {
        assert!(std::panic::catch_unwind(|| Page::read(&wrong)).is_err(), "{wrong}");
    }
    let asked =
        asked("histogram_quantile(0.5, sum by (le) (rate(firstlight_x_bucket{m=~\"$m\",i=\"a\"}[5m])))");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].1.iter().collect::<Vec<_>>(), ["i", "le", "m"]);
}
