//! The failures of a transfer by kind: where thousands of entries fail by one cause, a few are named, and the others
//! are counted, so that the cause stands out.

use std::collections::BTreeMap;

/// The number of failures of each kind.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<String, u64>);

impl Failures {
    /// Counts a failure, and returns whether it is one of the first of its kind, which are named.
    pub(crate) fn count(&mut self, message: &str) -> bool {
        let kind = kind(message);
        let is_one_too_many = self.0.len() >= KINDS_MAX && !self.0.contains_key(&kind);
        let failures = self.0.entry(if is_one_too_many { OTHERS.to_owned() } else { kind }).or_default();
        *failures += 1;
        *failures <= NAMED_MAX
    }

    /// One line for each kind of which more were counted than named.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = String> {
        let unnamed = self.0.iter().filter(|(_, failures)| **failures > NAMED_MAX);
        unnamed.map(|(kind, failures)| format!("{kind}: {} more (-v names each)", failures - NAMED_MAX))
    }
}

/// A message without what lies between its first quotation mark and its last, which are names.
fn kind(message: &str) -> String {
    match (message.find('\''), message.rfind('\'')) {
        (Some(first), Some(last)) => format!("{}{}", message[..first].trim_end(), &message[last + 1..]),
        _ => message.to_owned(),
    }
}

/// How many failures of a kind are named.
const NAMED_MAX: u64 = 10;
/// Kinds that are told apart: a message may hold numbers besides its names.
const KINDS_MAX: usize = 100;
const OTHERS: &str = "failures of other kinds";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_kind_are_named_and_the_others_counted() {
        let mut failures = Failures::default();
        let named =
            (0..600).filter(|file| failures.count(&format!("receiver: create 'it's {file}': denied")));
        assert_eq!(named.count(), 10);
        assert!(failures.count("receiver: create 'x': no space"));
        assert!(failures.count("sender: read 'x': denied"));
        let unnamed: Vec<_> = failures.unnamed().collect();
        assert_eq!(unnamed, ["receiver: create: denied: 590 more (-v names each)"]);
    }

    #[test]
    fn kinds_without_end_are_one_in_the_end() {
        let mut failures = Failures::default();
        let named = (0..1_000).filter(|at| failures.count(&format!("read at {at}")));
        assert_eq!(named.count(), KINDS_MAX + 10);
        let unnamed: Vec<_> = failures.unnamed().collect();
        assert_eq!(unnamed, ["failures of other kinds: 890 more (-v names each)"]);
    }
}
