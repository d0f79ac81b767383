//! Prometheus' text format: families with HELP and TYPE, samples with escaped labels.
//!
//! Place: [`super::scrape`] writes into it. A family is written once and as a whole; labels and their order come from
//! the metric table, so a sample cannot name a label that the table does not have.

use std::fmt::{self, Write};

use super::cells::Observed;
use super::table::{Kind, Metric};

/// Of the answer that carries the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text being written.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
    /// Number of samples.
    samples: usize,
}

/// The family that is being written.
pub struct Family<'a> {
    text: &'a mut Text,
    metric: &'static Metric,
}

impl Text {
    /// Begins a family.
    pub fn family(&mut self, metric: &'static Metric) -> Family<'_> {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram { .. } => "histogram",
        };
        self.put(format_args!("# HELP {} {}\n", metric.name, Escaped(metric.help, false)));
        self.put(format_args!("# TYPE {} {kind}\n", metric.name));
        Family { text: self, metric }
    }

    /// A family of one sample without labels.
    pub fn value(&mut self, metric: &'static Metric, value: impl Into<Number>) {
        self.family(metric).sample(&[], value);
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.out
    }

    fn put(&mut self, text: fmt::Arguments<'_>) {
        self.out.write_fmt(text).expect("writing to a string does not fail");
    }
}

impl Family<'_> {
    /// A sample; one value per label of the table, in its order.
    pub fn sample(&mut self, labels: &[&str], value: impl Into<Number>) -> &mut Self {
        self.line("", labels, None, value.into());
        self
    }

    /// The samples of a histogram; `scale` is how many of its units are one of the metric's (1e9 for times).
    pub fn histogram(&mut self, labels: &[&str], observed: &Observed) -> &mut Self {
        let Kind::Histogram { scale } = self.metric.kind else {
            panic!("{} is no histogram in the table", self.metric.name);
        };
        let mut count = 0;
        for (bucket, bound) in observed.buckets.iter().zip(observed.bounds) {
            count += bucket;
            let bound = (*bound as f64 / scale).to_string();
            self.line("_bucket", labels, Some(&bound), count.into());
        }
        self.line("_bucket", labels, Some("+Inf"), observed.count().into());
        self.line("_sum", labels, None, (observed.sum as f64 / scale).into());
        self.line("_count", labels, None, observed.count().into());
        self
    }

    fn line(&mut self, suffix: &str, labels: &[&str], le: Option<&str>, value: Number) {
        assert_eq!(labels.len(), self.metric.labels.len(), "labels of {}", self.metric.name);
        self.text.samples += 1;
        self.text.put(format_args!("{}{suffix}", self.metric.name));
        let names = self.metric.labels.iter().copied().zip(labels.iter().copied());
        let mut opening = '{';
        for (name, value) in names.chain(le.map(|le| ("le", le))) {
            self.text.put(format_args!("{opening}{name}=\"{}\"", Escaped(value, true)));
            opening = ',';
        }
        self.text.put(format_args!("{}", if opening == ',' { "} " } else { " " }));
        match value {
            Number::Whole(number) => self.text.put(format_args!("{number}\n")),
            Number::Real(number) => self.text.put(format_args!("{number}\n")),
        }
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// Without a fraction.
    Whole(i128),
    /// With one.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number.into())
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self::Whole(number.into())
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as i128)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

/// Text of a HELP line, or of a label's value where quotes are escaped too.
struct Escaped<'a>(&'a str, bool);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.1 => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::{COUNTS, Histogram};
    use super::*;

    static PLAIN: Metric = Metric {
        name: "a_total",
        kind: Kind::Counter,
        unit: "things",
        labels: &["x", "y"],
        help: "Q\\\n\".",
    };
    static BARE: Metric = Metric { name: "b", kind: Kind::Gauge, unit: "", labels: &[], help: "B." };
    static SPREAD: Metric = Metric {
        name: "c_seconds",
        kind: Kind::Histogram { scale: 2.0 },
        unit: "seconds",
        labels: &["x"],
        help: "C.",
    };

    /// Proves: the text is what Prometheus' description of the format says, escapes included, and buckets add up.
    #[test]
    fn the_format() {
        let mut text = Text::default();
        text.family(&PLAIN).sample(&["q\"\\", "a\nb"], 3_u64).sample(&["", "ü"], 4_u64);
        text.value(&BARE, 0.25);
        let histogram = Histogram::new(COUNTS);
        [1, 2, 2, 1 << 20].into_iter().for_each(|value| histogram.observe(value));
        text.family(&SPREAD).histogram(&["z"], &histogram.read());
        let text = text.finish();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..9],
            [
                "# HELP a_total Q\\\\\\n\".",
                "# TYPE a_total counter",
                "a_total{x=\"q\\\"\\\\\",y=\"a\\nb\"} 3",
                "a_total{x=\"\",y=\"ü\"} 4",
                "# HELP b B.",
                "# TYPE b gauge",
                "b 0.25",
                "# HELP c_seconds C.",
                "# TYPE c_seconds histogram",
            ]
        );
        assert_eq!(lines[9], "c_seconds_bucket{x=\"z\",le=\"0.5\"} 1");
        assert_eq!(lines[10], "c_seconds_bucket{x=\"z\",le=\"1\"} 3");
        assert_eq!(
            lines[25..],
            [
                "c_seconds_bucket{x=\"z\",le=\"+Inf\"} 4",
                "c_seconds_sum{x=\"z\"} 524290.5",
                "c_seconds_count{x=\"z\"} 4"
            ]
        );
    }
}
