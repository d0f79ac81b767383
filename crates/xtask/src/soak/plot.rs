//! The picture of a soak, drawn from its samples: what the broker used and did, over time, with its kills.
//!
//! The same CSV always gives the same bytes, so that `tidy` can tell whether the picture is up to date.

use std::fmt::Write;

use anyhow::{Context, Result, bail};

/// Samples of the last soak, and the picture of them.
pub(crate) const SAMPLES: &str = "docs/soak.csv";
pub(crate) const PICTURE: &str = "docs/soak.svg";

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 44.0;
const PANEL: f64 = 104.0;
const GAP: f64 = 26.0;
const MIB: f64 = 1_048_576.0;

/// Panels: heading, unit, and the columns drawn in it with their names and what they are divided by.
type Panel = (&'static str, &'static [(&'static str, &'static str, f64)]);
const PANELS: [Panel; 6] = [
    ("Memory of the broker, MiB", &[("rss_bytes", "resident", MIB)]),
    ("Folder, MiB", &[("disk_bytes", "on disk", MIB), ("garbage_bytes", "garbage", MIB)]),
    ("Descriptors and files", &[("descriptors", "descriptors", 1.0), ("files", "files", 1.0)]),
    ("Requests per second", &[("requests_per_second", "requests", 1.0)]),
    ("Commit, ms", &[("commit_p50_ms", "p50", 1.0), ("commit_p99_ms", "p99", 1.0)]),
    (
        "State",
        &[
            ("producers", "producers", 1.0),
            ("groups", "groups", 1.0),
            ("transactional_ids", "transactional ids", 1.0),
        ],
    ),
];
const COLOURS: [&str; 3] = ["#1f5fa8", "#b3392f", "#2e7d4f"];

struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<f64>>,
}

impl Table {
    fn read(csv: &str) -> Result<Self> {
        let mut lines = csv.lines();
        let columns: Vec<String> =
            lines.next().context("no heading")?.split(',').map(str::to_owned).collect();
        let mut rows = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let row: Vec<f64> =
                line.split(',').map(str::parse).collect::<Result<_, _>>().with_context(|| line.to_owned())?;
            if row.len() != columns.len() {
                bail!("{} cells for {} columns: {line}", row.len(), columns.len());
            }
            rows.push(row);
        }
        if rows.len() < 2 {
            bail!("fewer than two samples");
        }
        Ok(Self { columns, rows })
    }

    fn column(&self, name: &str) -> Result<Vec<f64>> {
        let at = self.columns.iter().position(|column| column == name);
        let at = at.with_context(|| format!("no column {name}"))?;
        Ok(self.rows.iter().map(|row| row[at]).collect())
    }
}

/// Draws the samples.
pub(crate) fn svg(csv: &str) -> Result<String> {
    let table = Table::read(csv)?;
    let (seconds, lives) = (table.column("second")?, table.column("life")?);
    let end = seconds.iter().copied().fold(1.0, f64::max);
    let height = TOP + PANELS.len() as f64 * (PANEL + GAP) + 24.0;
    let mut out = String::new();
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11.5\" fill=\"#1c2430\">"
    )?;
    let title = "Mixed load on one broker, killed (dashed) and started again on its folder";
    writeln!(out, "<title>{title}</title>")?;
    writeln!(out, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>")?;
    writeln!(out, "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"600\">{title}</text>")?;
    let x = |second: f64| LEFT + (WIDTH - LEFT - RIGHT) * second / end;
    for (number, (heading, series)) in PANELS.iter().enumerate() {
        let top = TOP + number as f64 * (PANEL + GAP);
        let mut drawn = Vec::new();
        for (column, name, divisor) in *series {
            let values = table.column(column)?.into_iter().map(|value| value / divisor).collect::<Vec<f64>>();
            drawn.push((*name, values));
        }
        let most = ceiling(drawn.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max));
        let y = |value: f64| top + PANEL - (PANEL - 16.0) * value / most;
        writeln!(out, "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"600\">{heading}</text>", top + 6.0)?;
        for share in [0.0, 0.5, 1.0] {
            let value = most * share;
            writeln!(
                out,
                "<path d=\"M{LEFT} {0:.1} H{1:.1}\" stroke=\"#e2e5ea\"/><text x=\"{2}\" y=\"{3:.1}\" \
                 text-anchor=\"end\" fill=\"#5a6472\">{value}</text>",
                y(value),
                WIDTH - RIGHT,
                LEFT - 8.0,
                y(value) + 4.0
            )?;
        }
        for kill in kills(&seconds, &lives) {
            writeln!(
                out,
                "<path d=\"M{:.1} {:.1} V{:.1}\" stroke=\"#c4a3a0\" stroke-dasharray=\"3 3\"/>",
                x(kill),
                top + 12.0,
                top + PANEL
            )?;
        }
        for (place, (name, values)) in drawn.iter().enumerate() {
            line(&mut out, COLOURS[place], &seconds, &lives, values, &x, &y)?;
            let label = top + 22.0 + 16.0 * place as f64;
            writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{label:.1}\" fill=\"{}\">{name}</text>",
                WIDTH - RIGHT + 10.0,
                COLOURS[place]
            )?;
        }
    }
    minutes(&mut out, end, height - 20.0, &x)?;
    out.push_str("</svg>\n");
    Ok(out)
}

/// One line per life.
fn line(
    out: &mut String,
    colour: &str,
    seconds: &[f64],
    lives: &[f64],
    values: &[f64],
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) -> Result<()> {
    let mut path = String::new();
    for at in 0..values.len() {
        let begins = at == 0 || lives[at] != lives[at - 1];
        write!(path, "{}{:.1} {:.1} ", if begins { 'M' } else { 'L' }, x(seconds[at]), y(values[at]))?;
    }
    writeln!(
        out,
        "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\"/>",
        path.trim_end()
    )?;
    Ok(())
}

/// When the broker was killed: between the last sample of a life and the first one of the next.
fn kills(seconds: &[f64], lives: &[f64]) -> Vec<f64> {
    let pairs = (1..lives.len()).filter(|at| lives[*at] != lives[*at - 1]);
    pairs.map(|at| f64::midpoint(seconds[at - 1], seconds[at])).collect()
}

fn minutes(out: &mut String, end: f64, y: f64, x: &dyn Fn(f64) -> f64) -> Result<()> {
    let step = if end > 1200.0 { 5.0 } else { 1.0 };
    let mut minute = 0.0;
    while minute * 60.0 <= end {
        let word = if minute == 0.0 { "0 min".to_owned() } else { format!("{minute}") };
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"#5a6472\">{word}</text>",
            x(minute * 60.0)
        )?;
        minute += step;
    }
    Ok(())
}

/// The next of 1, 2, 5 times a power of ten.
fn ceiling(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= value)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::sample::{Sample, csv};

    /// Proves: each life is a line of its own, a kill stands between two lives, and the same samples give the same bytes.
    #[test]
    fn lives_are_drawn() {
        let at =
            |second: f64, life: f64| Sample::of(&[("second", second), ("life", life), ("rss_bytes", 3e8)]);
        let text = csv(&[at(10.0, 0.0), at(20.0, 0.0), at(30.0, 1.0), at(40.0, 1.0)]);
        let drawn = svg(&text).expect("valid");
        assert_eq!(drawn, svg(&text).expect("valid"));
        assert_eq!(drawn.matches("stroke-dasharray").count(), PANELS.len(), "one kill per panel");
        let memory =
            drawn.lines().find(|line| line.contains(COLOURS[0]) && line.contains("d=\"M")).expect("a line");
        assert_eq!(memory.matches('M').count(), 2, "two lives");
    }

    /// Proves: what is no table of samples is refused.
    #[test]
    fn what_is_no_table_is_refused() {
        assert!(
            svg("").is_err() && svg("second,life\n1,2\n1,2,3\n").is_err() && svg("second\nx\ny\n").is_err()
        );
    }
}
