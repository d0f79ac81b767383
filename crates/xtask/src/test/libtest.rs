//! Counting tests from the lines that libtest prints.
//!
//! The closing line of a run (`test result: …`) is believed; when a run ends without one (a crash, a time
//! limit), the tests seen passing count, and the run itself is one failure. Test programs that do not speak
//! libtest count as one test, by their exit code.

/// Counts of one or more runs.
#[derive(Default, Debug, PartialEq)]
pub(super) struct Tally {
    /// Tests that passed.
    pub(super) passed: usize,
    /// Tests that failed.
    pub(super) failed: usize,
    /// Tests marked as ignored.
    pub(super) skipped: usize,
    /// Names of those that failed.
    pub(super) failures: Vec<String>,
    /// Passing, failing and ignored tests since the last closing line.
    open: [usize; 3],
    /// Whether libtest spoke at all.
    spoke: bool,
    /// Inside a run that has not closed.
    running: bool,
}

/// Whether the line says that one test passed or was ignored.
pub(super) fn is_pass(line: &str) -> bool {
    verdict(line).is_some_and(|(_, verdict)| verdict == "ok" || verdict.starts_with("ignored"))
}

/// `test NAME ... VERDICT`; the name may hold spaces (doc tests).
fn verdict(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name, verdict.trim()))
}

/// The number before `word` in a closing line.
fn count(line: &str, word: &str) -> usize {
    let part = line.split([';', '.']).map(str::trim).find_map(|part| part.strip_suffix(word));
    part.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

impl Tally {
    /// Takes one line of output.
    pub(super) fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("running ") {
            if rest.ends_with(" test") || rest.ends_with(" tests") {
                (self.spoke, self.running) = (true, true);
            }
        } else if line.starts_with("test result: ") {
            self.passed += count(line, "passed");
            self.failed += count(line, "failed");
            self.skipped += count(line, "ignored");
            (self.open, self.running) = ([0; 3], false);
        } else if let Some((name, verdict)) = verdict(line) {
            match verdict {
                "ok" => self.open[0] += 1,
                "FAILED" => {
                    self.open[1] += 1;
                    self.failures.push(name.to_owned());
                }
                _ if verdict.starts_with("ignored") => self.open[2] += 1,
                _ => {}
            }
        }
    }

    /// Tests seen passing so far.
    pub(super) fn seen(&self) -> usize {
        self.passed + self.open[0]
    }

    /// The program has ended.
    pub(super) fn close(&mut self, ended_well: bool) {
        if !self.spoke {
            *(if ended_well { &mut self.passed } else { &mut self.failed }) += 1;
        } else if self.running {
            self.passed += self.open[0];
            self.failed += self.open[1] + 1;
            self.skipped += self.open[2];
            self.failures.push("(the program ended in the middle of a run)".into());
        } else if !ended_well && self.failed == 0 {
            self.failed += 1;
            self.failures.push("(the program failed after its tests)".into());
        }
        (self.open, self.running) = ([0; 3], false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str, ended_well: bool) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.read(line));
        tally.close(ended_well);
        tally
    }

    /// Proves that the closing lines of several runs add up, and that failing tests are named.
    #[test]
    fn closing_lines_add_up() {
        let text = "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, slow\n\
            test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            running 1 test\ntest src/lib.rs - x (line 3) ... ok\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s";
        let tally = tally(text, false);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (2, 1, 1));
        assert_eq!(tally.failures, ["c"]);
    }

    /// Proves that a crash in the middle of a run is a failure, whatever passed before it.
    #[test]
    fn a_crash_is_a_failure() {
        let tally = tally("running 3 tests\ntest a ... ok\n", false);
        assert_eq!((tally.passed, tally.failed), (1, 1));
    }

    /// Proves that a program which is not libtest counts as one test, by its exit code.
    #[test]
    fn other_programs_count_once() {
        assert_eq!(tally("hello", true).passed, 1);
        assert_eq!(tally("hello", false).failed, 1);
    }

    /// Proves that a test's own output, glued to its line, does not change the counts of the closing line.
    #[test]
    fn noise_does_not_count() {
        let text = "running 1 test\ntest a ... printed by the test\nok\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let tally = tally(text, true);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 0, 0));
    }
}
