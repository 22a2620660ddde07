//! The colors, dashes and markers of each tool, which are the same in all charts. Tools that a chart does not emphasize
//! are gray.
//!
//! The colors are taken from the palette of Okabe and Ito. The light ones are darkened for print.

use zmove_tools::drawing::{GREY, LineStyle};

use super::charts::Look;
use super::contender::WRAPPER;

/// Returns the display name of a tool.
pub(crate) fn name(tool: &str) -> String {
    match tool {
        "zmove-quic" => "zmove, QUIC".to_owned(),
        "tarmbuffer" => "tar | mbuffer".to_owned(),
        "gridftp" => "GridFTP".to_owned(),
        "rsync" => "rsync, ssh".to_owned(),
        _ => tool.to_owned(),
    }
}

/// Returns the style of a tool, which is gray unless the tool is emphasized.
pub(crate) fn look(tool: &str, is_emphasised: bool) -> Look {
    let found = LOOKS
        .iter()
        .find(|(name, _)| is_emphasised && tool.starts_with(name));
    found.map_or(BACKGROUND, |(_, look)| *look)
}

const fn look_of(
    colour: &'static str,
    dashes: Option<&'static str>,
    width: f64,
    mark: &'static str,
) -> Look {
    Look {
        pen: LineStyle {
            colour,
            dashes,
            width,
        },
        mark,
    }
}

const CIRCLE: &str = "M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0z";
const DOT: &str = "M-1.8,0a1.8,1.8 0 1,0 3.6,0a1.8,1.8 0 1,0 -3.6,0z";
const SQUARE: &str = "M-3,-3h6v6h-6z";
const TRIANGLE: &str = "M0,-3.8L3.8,3L-3.8,3z";
const POINT_DOWN: &str = "M0,3.8L3.8,-3L-3.8,-3z";
const DIAMOND: &str = "M0,-4.2L4.2,0L0,4.2L-4.2,0z";
const BAR: &str = "M-1.6,-4h3.2v8h-3.2z";

/// The style of each tool, by name. A name must precede any other name that is its prefix.
const LOOKS: [(&str, Look); 7] = [
    ("zmove-quic", look_of("#0072b2", Some("6 3"), 2.0, SQUARE)),
    ("zmove", look_of("#0072b2", None, 3.0, CIRCLE)),
    ("rsyncd", look_of("#b87800", None, 1.8, DIAMOND)),
    ("rsync", look_of("#d55e00", None, 1.8, TRIANGLE)),
    (WRAPPER, look_of("#a6508a", Some("7 3"), 1.8, POINT_DOWN)),
    ("tarmbuffer", look_of("#007a5a", None, 1.8, BAR)),
    ("gridftp", look_of("#222222", Some("9 3 2 3"), 1.8, SQUARE)),
];
/// The style of tools that are not emphasized.
const BACKGROUND: Look = look_of(GREY, None, 1.1, DOT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_tools_look_the_same() {
        for (number, (tool, one)) in LOOKS.iter().enumerate() {
            assert_eq!(look(tool, true), *one, "{tool}");
            assert!(
                LOOKS[..number].iter().all(|(_, other)| other != one),
                "{tool}"
            );
        }
        assert_eq!(look("fpsync -n 8", true), look("fpsync", true));
        assert_eq!(look("zmove", false), BACKGROUND);
    }
}
