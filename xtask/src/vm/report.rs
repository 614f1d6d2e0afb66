//! Reports of a guest: one line each, written by the functions of `tests/vm/lib.sh`, parsed here.

/// A named verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Ok(String),
    Fail(String, String),
    Skip(String, String),
}

/// The report of a guest.
#[derive(Default)]
pub(super) struct Report {
    /// Verdicts in their order.
    pub outcomes: Vec<Outcome>,
    /// Counts for `./test.sh`: name and number.
    pub counts: Vec<(String, u64)>,
    /// Messages of the script to the host part: key and text.
    pub data: Vec<(String, String)>,
    /// Lines for the reader.
    pub notes: Vec<String>,
    /// Seconds after power-on at each start of the script.
    pub booted: Vec<f32>,
    /// Number of times that the script cut the power.
    pub cuts: usize,
    /// Exit status of the script. `None`: it did not finish.
    pub status: Option<i32>,
    /// Unknown lines: a report with such lines is a failure.
    pub strange: Vec<String>,
}

impl Report {
    /// Parses a report; a truncated last line counts as strange.
    pub(super) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            report.line(line);
        }
        report
    }

    /// Returns the numbers of passed, failed and skipped checks.
    pub(super) fn sums(&self) -> (usize, usize, usize) {
        let count = |of: fn(&Outcome) -> bool| self.outcomes.iter().filter(|outcome| of(outcome)).count();
        let failures = count(|outcome| matches!(outcome, Outcome::Fail(..)));
        let skips = count(|outcome| matches!(outcome, Outcome::Skip(..)));
        (self.outcomes.len() - failures - skips, failures, skips)
    }

    fn line(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
        let named = |make: fn(String, String) -> Outcome| make(name.to_owned(), why.to_owned());
        match verb {
            "ok" if !name.is_empty() => self.outcomes.push(Outcome::Ok(name.to_owned())),
            "fail" if !name.is_empty() => self.outcomes.push(named(Outcome::Fail)),
            "skip" if !name.is_empty() => self.outcomes.push(named(Outcome::Skip)),
            "data" if !name.is_empty() => self.data.push((name.to_owned(), why.to_owned())),
            "note" => self.notes.push(rest.to_owned()),
            "count" if why.parse::<u64>().is_ok() => {
                self.counts.push((name.to_owned(), why.parse().unwrap_or_default()));
            }
            "booted" if rest.parse::<f32>().is_ok() => self.booted.extend(rest.parse::<f32>()),
            "cut" if rest.is_empty() => self.cuts += 1,
            "end" if rest.parse::<i32>().is_ok() => self.status = rest.parse().ok(),
            _ => self.strange.push(line.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lines_are_parsed() {
        let report = Report::parse(
            "booted 3.25\ncut\nbooted 3.5\nok one\nfail two it broke\nskip three no such thing\ncount n 12\ndata k some text\nnote a b\nend 0\n",
        );
        assert_eq!((&report.booted[..], report.cuts), (&[3.25, 3.5][..], 1));
        assert_eq!(report.outcomes[0], Outcome::Ok("one".into()));
        assert_eq!(report.outcomes[1], Outcome::Fail("two".into(), "it broke".into()));
        assert_eq!(report.outcomes[2], Outcome::Skip("three".into(), "no such thing".into()));
        assert_eq!(report.data, [("k".to_owned(), "some text".to_owned())]);
        assert_eq!((report.counts, report.notes), (vec![("n".into(), 12)], vec!["a b".into()]));
        assert_eq!((report.status, report.strange.len()), (Some(0), 0));
    }

    #[test]
    fn unknown_report_line_is_kept() {
        let report = Report::parse("ok\ncut off\nnonsense\ncount n many\nend soon\nen");
        assert_eq!(report.strange, ["ok", "cut off", "nonsense", "count n many", "end soon", "en"]);
        assert_eq!((report.status, report.booted.len(), report.cuts), (None, 0, 0));
    }
}
