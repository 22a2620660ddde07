//! The curves of a trace.
//!
//! While no stage stalls, the byte counts of all stages are almost equal. Therefore only the count of the last stage is
//! drawn, and the differences between stages are drawn as a backlog. A stage has the same color and line style in every
//! panel. The colors are taken from the palette of Okabe and Ito, which people with color blindness can distinguish. In
//! a print without colors, dashes distinguish the curves.

use zmove_types::ByteCount;

use super::line::TraceLine;
use super::series::{Pieces, Points, count};
use crate::drawing::LineStyle;
use crate::drawing::scale::{self, Axis, UnitScale};

/// A chart over time.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) axis: Axis,
    pub(super) height: f64,
    pub(super) curves: Vec<Curve>,
}

/// A curve of a panel, in the panel's units.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) pen: LineStyle,
    pub(super) points: Points,
}

/// Returns all panels of a trace, from top to bottom.
pub(super) fn panels(lines: &[TraceLine]) -> Vec<Panel> {
    let pieces = Pieces::of(lines, PIECES_MAX);
    let kernel_tells = lines.iter().any(|line| line.bytes_acked.is_some());
    let mut panels = vec![
        progress(&pieces),
        rates(&pieces),
        backlog(&pieces, kernel_tells),
        lanes(&pieces),
    ];
    if kernel_tells {
        panels.push(resent(&pieces));
    }
    panels
}

fn progress(pieces: &Pieces<'_>) -> Panel {
    let points = pieces.totals(|line| bytes(line.bytes_stored));
    scaled(
        "Stored and verified",
        scale::BYTES,
        vec![Curve {
            name: "stored",
            pen: STORED,
            points,
        }],
    )
}

fn rates(pieces: &Pieces<'_>) -> Panel {
    let curves = vec![
        Curve {
            name: "read",
            pen: READ,
            points: pieces.rates(|line| bytes(line.bytes_read)),
        },
        Curve {
            name: "stored",
            pen: STORED,
            points: pieces.rates(|line| bytes(line.bytes_stored)),
        },
    ];
    let mut panel = scaled("Rate", scale::RATES, curves);
    panel
        .title
        .push_str(&format!(", over {:.1} s each", pieces.window()));
    panel
}

/// Draws the backlog between stages: bytes that a stage has processed and the next stage has not. Bytes accumulate in
/// front of the bottleneck.
fn backlog(pieces: &Pieces<'_>, kernel_tells: bool) -> Panel {
    let lag = |name, pen, ahead: fn(&TraceLine) -> u64, behind: fn(&TraceLine) -> u64| Curve {
        name,
        pen,
        points: pieces.means(move |line| bytes(ahead(line).saturating_sub(behind(line)))),
    };
    let given: fn(&TraceLine) -> u64 = |line| line.bytes_handed_over;
    let stored: fn(&TraceLine) -> u64 = |line| line.bytes_stored;
    // The kernel also counts TLS and headers, so the backlog on the path may appear some thousandths too small.
    let acked: fn(&TraceLine) -> u64 =
        |line| line.bytes_acked.unwrap_or(0).min(line.bytes_handed_over);
    let mut curves = vec![lag("for lanes", READ, |line| line.bytes_read, given)];
    if kernel_tells {
        curves.push(lag("for the path", LANES, given, acked));
        curves.push(lag("for the target", STORED, acked, stored));
    } else {
        curves.push(lag("for path and target", LANES, given, stored));
    }
    scaled("Bytes waiting", scale::BYTES, curves)
}

fn lanes(pieces: &Pieces<'_>) -> Panel {
    let curves = vec![Curve {
        name: "lanes",
        pen: LANES,
        points: pieces.means(|line| count(line.lanes)),
    }];
    counted("Connected lanes", 2.0, curves)
}

fn resent(pieces: &Pieces<'_>) -> Panel {
    let points = pieces.rates(|line| bytes(line.segments_retransmitted.unwrap_or(0)));
    let curves = vec![Curve {
        name: "segments",
        pen: RESENT,
        points,
    }];
    counted("Retransmitted segments per second", 4.0, curves)
}

/// Returns a low panel of plain numbers. The axis ends at `least` or above.
fn counted(title: &str, least: f64, curves: Vec<Curve>) -> Panel {
    Panel {
        title: title.to_owned(),
        axis: Axis::to_tick(most(&curves).max(least), LOW_STEPS),
        height: LOW,
        curves,
    }
}

/// Returns a panel in the unit that suits its largest value.
fn scaled(title: &str, units: UnitScale, mut curves: Vec<Curve>) -> Panel {
    let unit = units.fitting(most(&curves));
    for (_, value) in curves.iter_mut().flat_map(|curve| &mut curve.points) {
        *value /= unit.size;
    }
    let axis = Axis::to_tick(most(&curves), STEPS_MAX);
    Panel {
        title: format!("{title}, {}", unit.name),
        axis,
        height: TALL,
        curves,
    }
}

fn most(curves: &[Curve]) -> f64 {
    curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(_, value)| *value)
        .fold(0.0, f64::max)
}

fn bytes(number: u64) -> f64 {
    ByteCount(number).as_f64()
}

const READ: LineStyle = LineStyle {
    colour: "#d55e00",
    dashes: Some("7 3"),
    width: 1.8,
};
const LANES: LineStyle = LineStyle {
    colour: "#0072b2",
    dashes: None,
    width: 1.6,
};
const STORED: LineStyle = LineStyle {
    colour: "#007a5a",
    dashes: None,
    width: 2.6,
};
const RESENT: LineStyle = LineStyle {
    colour: "#000000",
    dashes: None,
    width: 1.4,
};
/// Maximum number of points of a curve, about one for every two units of the image's width.
const PIECES_MAX: usize = 200;
/// Maximum number of steps on the axis of a tall panel.
const STEPS_MAX: u32 = 6;
const TALL: f64 = 150.0;
const LOW: f64 = 60.0;
/// Maximum number of steps on the axis of a low panel.
const LOW_STEPS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::super::series::tests::steady;
    use super::*;

    fn titles(panels: &[Panel]) -> Vec<&str> {
        panels.iter().map(|panel| panel.title.as_str()).collect()
    }

    #[test]
    fn units_follow_what_was_moved() {
        let panels = panels(&steady(40, 12_500_000));
        let expected = [
            "Stored and verified, MiB",
            "Rate, Gbit/s, over 0.1 s each",
            "Bytes waiting, MiB",
            "Connected lanes",
            "Retransmitted segments per second",
        ];
        assert_eq!(titles(&panels), expected);
        let stored = panels[1].curves.last().unwrap();
        assert!(stored.points.len() > 1, "{stored:?}");
        assert!(
            stored
                .points
                .iter()
                .all(|(_, rate)| (rate - 1.0).abs() < 1e-6),
            "{stored:?}"
        );
    }

    #[test]
    fn bytes_wait_between_one_stage_and_the_next() {
        let lines = steady(40, 1 << 20);
        let backlog = &panels(&lines)[2];
        let names: Vec<_> = backlog.curves.iter().map(|curve| curve.name).collect();
        assert_eq!(names, ["for lanes", "for the path", "for the target"]);
        let each = |curve: &Curve| {
            let is_one = |waiting: f64| (waiting - 1.0).abs() < 1e-9;
            curve.points.len() > 1 && curve.points.iter().all(|(_, waiting)| is_one(*waiting))
        };
        assert!(
            backlog.curves.iter().all(each),
            "a MiB between any two stages: {backlog:?}"
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_drawn() {
        let untold = |line: TraceLine| TraceLine {
            bytes_acked: None,
            segments_retransmitted: None,
            ..line
        };
        let lines: Vec<TraceLine> = steady(3, 1).into_iter().map(untold).collect();
        let panels = panels(&lines);
        assert_eq!(panels.len(), 4);
        let names: Vec<_> = panels[2].curves.iter().map(|curve| curve.name).collect();
        assert_eq!(names, ["for lanes", "for path and target"]);
    }
}
