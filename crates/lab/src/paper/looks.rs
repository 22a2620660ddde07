//! The same colours, dashes and marks for each tool in all pictures.
//!
//! The colours are those of Okabe and Ito, the light ones darker, so that they show in print.

use zmove_drawing::Pen;

use super::charts::Look;
use super::contender::WRAPPER;

/// What a tool is called in pictures and tables.
pub(crate) fn name(tool: &str) -> String {
    match tool {
        "zmove-quic" => "zmove, QUIC".to_owned(),
        "tarmbuffer" => "tar | mbuffer".to_owned(),
        "gridftp" => "GridFTP".to_owned(),
        "rsync" => "rsync, ssh".to_owned(),
        _ => tool.to_owned(),
    }
}

/// How a tool is drawn.
pub(crate) fn look(tool: &str) -> Look {
    let found = LOOKS.iter().find(|(name, _)| tool.starts_with(name));
    found.map_or(OTHER, |(_, look)| *look)
}

const fn look_of(colour: &'static str, dashes: Option<&'static str>, width: f64, mark: &'static str) -> Look {
    Look { pen: Pen { colour, dashes, width }, mark }
}

const CIRCLE: &str = "M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0z";
const SQUARE: &str = "M-3,-3h6v6h-6z";
const TRIANGLE: &str = "M0,-3.8L3.8,3L-3.8,3z";
const POINT_DOWN: &str = "M0,3.8L3.8,-3L-3.8,-3z";
const DIAMOND: &str = "M0,-4.2L4.2,0L0,4.2L-4.2,0z";
const BAR: &str = "M-1.6,-4h3.2v8h-3.2z";
const LYING_BAR: &str = "M-4,-1.6h8v3.2h-8z";
const HOURGLASS: &str = "M-3.4,-3.8h6.8L-3.4,3.8h6.8z";
const PLUS: &str = "M-1.2,-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z";
const CROSS: &str =
    "M0,-1.7L2.1,-3.8L3.8,-2.1L1.7,0L3.8,2.1L2.1,3.8L0,1.7L-2.1,3.8L-3.8,2.1L-1.7,0L-3.8,-2.1L-2.1,-3.8z";

/// A longer name stands before the shorter one that it begins with.
const LOOKS: [(&str, Look); 14] = [
    ("zmove-quic", look_of("#0072b2", Some("6 3"), 2.0, SQUARE)),
    ("zmove", look_of("#0072b2", None, 3.0, CIRCLE)),
    ("rsyncd", look_of("#b87800", None, 1.8, DIAMOND)),
    ("rsync", look_of("#d55e00", None, 1.8, TRIANGLE)),
    (WRAPPER, look_of("#b0528a", Some("7 3"), 1.8, POINT_DOWN)),
    ("scp", look_of("#7f7f7f", Some("2 3"), 1.8, CIRCLE)),
    ("tarmbuffer", look_of("#007a5a", None, 1.8, BAR)),
    ("rclone", look_of("#3a8fc4", Some("2 3"), 1.8, TRIANGLE)),
    ("gridftp", look_of("#222222", Some("9 3 2 3"), 1.8, SQUARE)),
    ("syq", look_of("#857a00", Some("5 2"), 1.8, DIAMOND)),
    ("xrdcp", look_of("#007a5a", Some("9 3 2 3"), 1.8, PLUS)),
    ("davix", look_of("#3a8fc4", Some("6 3"), 1.8, HOURGLASS)),
    ("rcp", look_of("#d55e00", Some("5 2"), 1.8, LYING_BAR)),
    ("qcp", look_of("#b0528a", Some("2 3"), 1.8, CROSS)),
];
const OTHER: Look = look_of("#222222", None, 1.5, BAR);

#[cfg(test)]
mod tests {
    use super::super::contender::ALL;
    use super::*;

    #[test]
    fn no_two_tools_look_the_same() {
        let looks: Vec<Look> = ALL.split(',').map(look).collect();
        for (number, one) in looks.iter().enumerate() {
            assert!(looks[..number].iter().all(|other| other != one), "{one:?}");
        }
        assert!(looks.iter().all(|look| *look != OTHER), "a tool of the study has no look");
        assert_eq!(look("fpsync -n 8"), look("fpsync"));
    }
}
