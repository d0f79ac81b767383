//! Whether what a broker uses stays flat.
//!
//! A straight line is fitted (least squares) and its rise over ten minutes set against its mean. Three questions:
//!
//! - **over restarts**: the means of the lives' samples, from a third of the time on, of ages at which all lives can be
//!   compared: what is kept durably (producers, groups, transactional ids, topics) must not grow;
//! - **within one life**: the last third of the time, without kills and without its own first third: what is kept in
//!   memory only (sessions, caches, the allocator) must not grow;
//! - **descriptors and disk**: over all samples from a third of the time on.

use serde_json::{Value, json};

use super::sample::Sample;

/// Memory may rise by so much in ten minutes, percent.
const MEMORY_PERCENT: f64 = 1.0;
/// Descriptors and disk count as flat up to this, percent in ten minutes.
const FLAT_PERCENT: f64 = 2.0;
/// Ages of a life, in seconds, at which lives are compared.
const AGES: (f64, f64) = (110.0, 180.0);

/// The answer to one question.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    name: &'static str,
    mean: f64,
    /// Of the mean, in ten minutes; none when there are too few points.
    percent: Option<f64>,
    points: usize,
    allowed: f64,
}

impl Verdict {
    fn of(name: &'static str, points: &[(f64, f64)], allowed: f64) -> Self {
        let mean = points.iter().map(|(_, value)| value).sum::<f64>() / points.len().max(1) as f64;
        let percent = slope(points).map(|slope| slope * 600.0 / mean.max(1.0) * 100.0);
        Self { name, mean, percent, points: points.len(), allowed }
    }

    /// Whether it is flat; what could not be seen is not.
    pub(crate) fn holds(&self) -> bool {
        self.percent.is_some_and(|percent| percent < self.allowed)
    }

    /// As a field of a JSON object.
    pub(crate) fn json(&self) -> (String, Value) {
        (self.name.to_owned(), json!(self.shown()))
    }

    fn shown(&self) -> String {
        let mean = if self.mean >= 1e6 {
            format!("{:.1} MiB", self.mean / f64::from(1 << 20))
        } else {
            format!("{:.1}", self.mean)
        };
        match self.percent {
            Some(percent) => format!(
                "{percent:+.2} % in ten minutes (allowed < {}), mean {mean}, {} points",
                self.allowed, self.points
            ),
            None => format!("too few points ({})", self.points),
        }
    }
}

/// All questions, of a run in which records were written for so many seconds.
pub(crate) fn judge(samples: &[Sample], seconds: f64) -> Vec<Verdict> {
    let (warm, last) = (seconds / 3.0, seconds * 2.0 / 3.0);
    let late: Vec<&Sample> = samples
        .iter()
        .filter(|sample| sample.get("second") >= warm && sample.get("second") <= seconds)
        .collect();
    let column = |samples: &[&Sample], name: &str| -> Vec<(f64, f64)> {
        samples.iter().map(|sample| (sample.get("second"), sample.get(name))).collect()
    };
    let settled = last + (seconds - last) / 3.0;
    let final_life: Vec<&Sample> =
        late.iter().copied().filter(|sample| sample.get("second") >= settled).collect();
    vec![
        Verdict::of("memory over restarts", &lives(samples, warm), MEMORY_PERCENT),
        Verdict::of("memory within the last life", &column(&final_life, "rss_bytes"), MEMORY_PERCENT),
        Verdict::of("descriptors", &column(&late, "descriptors"), FLAT_PERCENT),
        Verdict::of("disk", &column(&late, "disk_bytes"), FLAT_PERCENT),
    ]
}

/// Per life from `warm` on, when it began and the mean memory of its comparable samples.
fn lives(samples: &[Sample], warm: f64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for life in samples.chunk_by(|one, other| one.get("life") == other.get("life")) {
        let began = life.first().map_or(0.0, |sample| sample.get("second"));
        let ages = |sample: &&Sample| {
            let age = sample.get("second") - began;
            sample.get("second") >= warm && age >= AGES.0 && age <= AGES.1
        };
        let comparable: Vec<f64> = life.iter().filter(ages).map(|sample| sample.get("rss_bytes")).collect();
        if !comparable.is_empty() {
            points.push((began, comparable.iter().sum::<f64>() / comparable.len() as f64));
        }
    }
    points
}

/// Of the line with the least squares; none for less than three points.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 3 {
        return None;
    }
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let common: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (spread > 0.0).then(|| common / spread)
}

/// For people.
pub(crate) fn table(verdicts: &[Verdict]) -> String {
    let mut text = String::from("| what must stay flat | found | |\n|---|---|---|\n");
    for verdict in verdicts {
        let word = if verdict.holds() { "flat" } else { "**not flat**" };
        text += &format!("| {} | {} | {word} |\n", verdict.name, verdict.shown());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 45 minutes, killed every 200 seconds for two thirds of it; memory and disk as given by second and age.
    fn samples(rss: impl Fn(f64, f64) -> f64, disk: impl Fn(f64) -> f64) -> Vec<Sample> {
        let at = |step: u32| {
            let second = f64::from(step) * 10.0;
            let life = (second / 200.0).floor().min(9.0);
            let age = second - life * 200.0;
            Sample::of(&[
                ("second", second),
                ("life", life),
                ("rss_bytes", rss(second, age)),
                ("descriptors", 80.0 + f64::from(step % 3)),
                ("disk_bytes", disk(second)),
            ])
        };
        (1..=270).map(at).collect()
    }

    fn found(samples: &[Sample]) -> Vec<bool> {
        judge(samples, 2700.0).iter().map(Verdict::holds).collect()
    }

    /// Proves: what begins anew with each life and then stays is flat; a slow rise over restarts, one within a life and
    /// one of the disk are each found, and only they.
    #[test]
    fn growth_is_found_where_it_is() {
        let calm = |_: f64, age: f64| 2e8 + 1e6 * age.min(60.0);
        let even = |second: f64| 5e8 + 1e7 * (second / 40.0).sin();
        assert_eq!(found(&samples(calm, even)), [true, true, true, true]);
        let kept = |second: f64, age: f64| calm(second, age) + 6e3 * second.min(1800.0);
        assert_eq!(found(&samples(kept, even)), [false, true, true, true]);
        let leaking = |second: f64, age: f64| calm(second, age) + 6e3 * (age - 200.0).max(0.0);
        assert_eq!(found(&samples(leaking, even)), [true, false, true, true]);
        assert_eq!(found(&samples(calm, |second| 5e8 + 3e4 * second)), [true, true, true, false]);
    }

    /// Proves: too few samples are no proof of anything.
    #[test]
    fn nothing_is_judged_from_nothing() {
        assert_eq!(found(&[]), [false; 4]);
    }
}
