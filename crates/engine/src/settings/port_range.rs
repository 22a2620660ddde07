//! A range of ports that a firewall lets through.

use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// From one port to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Its ports, one after the other.
    #[must_use]
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl TryFrom<(u16, u16)> for PortRange {
    type Error = String;

    fn try_from((first, last): (u16, u16)) -> Result<Self, String> {
        if first == 0 || last < first {
            return Err(format!("{first}-{last} are no ports: write FROM-TO, as 50000-50100"));
        }
        Ok(Self { first, last })
    }
}

impl From<PortRange> for (u16, u16) {
    fn from(range: PortRange) -> Self {
        (range.first, range.last)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => (first, last).try_into(),
            _ => Err(format!("'{text}' are no ports: write FROM-TO, as 50000-50100")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        let ports = |text: &str| text.parse::<PortRange>().map(|range| range.ports().count());
        assert_eq!((ports("50000-50100"), ports("7")), (Ok(101), Ok(1)));
        for text in ["", "-", "0-7", "9-8", "1-70000", "a-b", "1-2-3"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
