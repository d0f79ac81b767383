//! `cargo xtask draw`: pictures of the docs, drawn from text beside them.
//!
//! `docs/guide/**/NAME.txt` that begins with [`MARK`] becomes `NAME.svg`: panels with moments from left to right and
//! lanes of cells (the text says how). The same text always gives the same bytes, so `tidy` can tell whether a picture
//! is up to date. The samples of a soak are drawn by `soak/plot.rs`. Not here: any other kind of picture.

use std::fmt::Write;

use anyhow::{Context, Result, bail};

use crate::run::{self, Workspace};
use crate::soak::plot;

/// How a text that is drawn begins.
pub(crate) const MARK: &str = "# Drawn by `cargo xtask draw`";

const WIDTH: usize = 1_080;
const LABEL: usize = 84;
const MARGIN: usize = 12;
const TITLE: usize = 34;
const HEADING: usize = 30;
const TIMES: usize = 22;
const LANE: usize = 46;
const GAP: usize = 4;
const LINE: usize = 15;

/// What a cell says about the data in it: name, fill and edge.
const KINDS: [(&str, &str, &str); 4] = [
    ("done", "#d8efdc", "#2e7d4f"),
    ("open", "#fdf0cf", "#b07d12"),
    ("gone", "#f7d9d6", "#b3392f"),
    ("none", "#f3f4f6", "#9aa1ab"),
];

struct Cell {
    kind: usize,
    lines: Vec<String>,
    /// First moment and how many.
    from: usize,
    moments: usize,
}

struct Lane {
    name: String,
    cells: Vec<Cell>,
}

struct Panel {
    heading: String,
    times: Vec<String>,
    lanes: Vec<Lane>,
}

struct Picture {
    title: String,
    panels: Vec<Panel>,
}

/// Draws all pictures anew.
pub(crate) fn run() -> Result<bool> {
    let workspace = Workspace::find()?;
    let mut command = std::process::Command::new("git");
    command.current_dir(&workspace.root);
    command.args(["ls-files", "--cached", "--others", "--exclude-standard", "docs/*.txt"]);
    for name in run::output(&mut command)?.lines() {
        let text = std::fs::read_to_string(workspace.path(name)).with_context(|| name.to_owned())?;
        if text.starts_with(MARK) {
            let picture = picture_of(name);
            std::fs::write(workspace.path(&picture), svg(&text).with_context(|| name.to_owned())?)?;
            run::step(&format!("drew {picture}"));
        }
    }
    if let Ok(samples) = std::fs::read_to_string(workspace.path(plot::SAMPLES)) {
        std::fs::write(workspace.path(plot::PICTURE), plot::svg(&samples).context(plot::SAMPLES)?)?;
        run::step(&format!("drew {}", plot::PICTURE));
    }
    Ok(true)
}

/// The picture's name, by the text's.
pub(crate) fn picture_of(name: &str) -> String {
    format!("{}.svg", name.strip_suffix(".txt").unwrap_or(name))
}

/// Draws a text.
pub(crate) fn svg(text: &str) -> Result<String> {
    let picture = parse(text)?;
    let height = |panel: &Panel| HEADING + TIMES + panel.lanes.len() * (LANE + GAP);
    let total = TITLE + picture.panels.iter().map(height).sum::<usize>() + 2 * MARGIN;
    let mut out = String::new();
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11.5\" fill=\"#1c2430\">"
    )?;
    writeln!(out, "<title>{}</title>", escaped(&picture.title))?;
    writeln!(out, "<rect width=\"{WIDTH}\" height=\"{total}\" fill=\"#ffffff\"/>")?;
    words(&mut out, (MARGIN, MARGIN + 14), "font-size=\"15\" font-weight=\"600\"", &picture.title)?;
    legend(&mut out)?;
    let mut top = MARGIN + TITLE;
    for panel in &picture.panels {
        draw_panel(&mut out, panel, top)?;
        top += height(panel);
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn legend(out: &mut String) -> Result<()> {
    for (place, (name, fill, edge)) in KINDS.iter().enumerate() {
        let said = match *name {
            "done" => "committed",
            "open" => "not decided",
            "gone" => "aborted, lost",
            _ => "nothing",
        };
        let left = WIDTH - MARGIN - (KINDS.len() - place) * 105;
        writeln!(
            out,
            "<rect x=\"{left}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{fill}\" stroke=\"{edge}\"/>",
            MARGIN + 4
        )?;
        words(out, (left + 17, MARGIN + 14), "", said)?;
    }
    Ok(())
}

fn draw_panel(out: &mut String, panel: &Panel, top: usize) -> Result<()> {
    words(out, (MARGIN, top + 18), "font-size=\"13\" font-weight=\"600\"", &panel.heading)?;
    let room = WIDTH - 2 * MARGIN - LABEL;
    let left = |moment: usize| MARGIN + LABEL + room * moment / panel.times.len();
    for (moment, time) in panel.times.iter().enumerate() {
        let is_crash = time.contains("SIGKILL");
        let style = if is_crash { "font-weight=\"600\" fill=\"#b3392f\"" } else { "fill=\"#5a6472\"" };
        words(out, (left(moment) + 6, top + HEADING + 12), style, time)?;
    }
    let lanes_top = top + HEADING + TIMES;
    for (row, lane) in panel.lanes.iter().enumerate() {
        let y = lanes_top + row * (LANE + GAP);
        words(out, (MARGIN, y + LANE / 2 + 4), "font-weight=\"600\"", &lane.name)?;
        for cell in &lane.cells {
            let (x, end) = (left(cell.from), left(cell.from + cell.moments));
            let (_, fill, edge) = KINDS[cell.kind];
            writeln!(
                out,
                "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{LANE}\" rx=\"4\" fill=\"{fill}\" stroke=\"{edge}\"/>",
                x + 2,
                end - x - 4
            )?;
            let first = y + LANE / 2 + 4 - (cell.lines.len() - 1) * LINE / 2;
            for (number, line) in cell.lines.iter().enumerate() {
                words(out, (x + 8, first + number * LINE), "", line)?;
            }
        }
    }
    for moment in panel.times.iter().enumerate().filter(|(_, time)| time.contains("SIGKILL")) {
        let (x, end) = (left(moment.0), lanes_top + panel.lanes.len() * (LANE + GAP) - GAP);
        writeln!(
            out,
            "<path d=\"M{x} {} V{end}\" stroke=\"#b3392f\" stroke-width=\"2\" stroke-dasharray=\"5 3\"/>",
            top + HEADING
        )?;
    }
    Ok(())
}

fn words(out: &mut String, (x, y): (usize, usize), style: &str, text: &str) -> Result<()> {
    let space = if style.is_empty() { "" } else { " " };
    writeln!(out, "<text x=\"{x}\" y=\"{y}\"{space}{style}>{}</text>", escaped(text))?;
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn parse(text: &str) -> Result<Picture> {
    let mut picture = Picture { title: String::new(), panels: Vec::new() };
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let done = match word {
            "title" => {
                picture.title = rest.to_owned();
                Ok(())
            }
            "panel" => {
                picture.panels.push(Panel { heading: rest.to_owned(), times: Vec::new(), lanes: Vec::new() });
                Ok(())
            }
            _ => picture.panels.last_mut().context("no panel yet").and_then(|panel| fill(panel, word, rest)),
        };
        done.with_context(|| format!("line {}", number + 1))?;
    }
    if picture.panels.iter().any(|panel| panel.times.is_empty() || panel.lanes.is_empty()) {
        bail!("a panel without times or lanes");
    }
    Ok(picture)
}

/// A line within a panel.
fn fill(panel: &mut Panel, word: &str, rest: &str) -> Result<()> {
    let mut parts = rest.split('|').map(str::trim);
    let name = parts.next().unwrap_or_default().to_owned();
    match word {
        "times" => panel.times = parts.map(str::to_owned).collect(),
        "lane" => {
            let mut cells: Vec<Cell> = Vec::new();
            let mut moments = 0;
            for part in parts {
                if part == ">" {
                    cells.last_mut().context("nothing to continue")?.moments += 1;
                } else {
                    let (kind, said) = part.split_once(' ').context("a cell is a kind and a text")?;
                    let kind = KINDS.iter().position(|known| known.0 == kind);
                    cells.push(Cell {
                        kind: kind.context("no such kind of cell")?,
                        lines: said.split('/').map(|line| line.trim().to_owned()).collect(),
                        from: moments,
                        moments: 1,
                    });
                }
                moments += 1;
            }
            if moments != panel.times.len() {
                bail!("{moments} cells for {} times", panel.times.len());
            }
            panel.lanes.push(Lane { name, cells });
        }
        other => bail!("no such line: {other}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "title A < B\npanel One\ntimes | now | SIGKILL | later\nlane log | done a / b | > | gone c\n";

    /// Proves that cells are drawn where they begin and as long as they last, escaped, the same each time.
    #[test]
    fn a_picture_is_drawn() {
        let drawn = svg(TEXT).expect("valid");
        assert_eq!(drawn, svg(TEXT).expect("valid"));
        assert!(drawn.contains("<title>A &lt; B</title>"), "{drawn}");
        assert_eq!(drawn.matches("rx=\"4\"").count(), 2, "one cell over two moments, and one");
        assert!(drawn.contains(">a</text>") && drawn.contains(">b</text>"), "two lines");
        assert!(drawn.contains("stroke-dasharray"), "where it is killed");
    }

    /// Proves that a lane that does not fit its times is refused with its line.
    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |text: String| format!("{:#}", svg(&text).expect_err("invalid"));
        assert_eq!(refused(format!("{TEXT}lane disk | done a\n")), "line 5: 1 cells for 3 times");
        assert_eq!(refused(TEXT.replace("done", "maybe")), "line 4: no such kind of cell");
        assert_eq!(refused("lane a".to_owned()), "line 1: no panel yet");
    }
}
