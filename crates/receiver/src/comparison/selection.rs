//! The selection that the rules of a message make up.

use std::ops::RangeInclusive;

use zmove_scan::{Effect, PatternError, Rule, Selection};
use zmove_wire::limits::{SELECTION_RULE_BYTES_MAX, within};
use zmove_wire::{RuleText, WireError};

use crate::rights::quota::Booking;

/// The memory of a compiled rule, for each byte of its pattern.
const RULE_BYTES_PER_BYTE: usize = 64;

/// Books the memory that the rules of a message take when they are compiled.
///
/// # Errors
/// The patterns have more than [`SELECTION_RULE_BYTES_MAX`] bytes, or their key may not take so much memory.
pub fn book_rules(rules: &[RuleText], held: &mut Booking) -> Result<(), WireError> {
    let bytes = rules.iter().map(|rule| rule.pattern.len()).sum();
    within("patterns of a selection", bytes, SELECTION_RULE_BYTES_MAX)?;
    held.grow(bytes * RULE_BYTES_PER_BYTE)
}

/// The selection of these rules and sizes; `None` if they leave out nothing.
///
/// # Errors
/// [`PatternError`] if a pattern cannot be used.
pub fn selection(
    rules: &[RuleText],
    sizes: RangeInclusive<u64>,
) -> Result<Option<Selection>, PatternError> {
    if rules.is_empty() && sizes == (0..=u64::MAX) {
        return Ok(None);
    }
    let rule = |text: &RuleText| {
        let effect = if text.includes {
            Effect::Include
        } else {
            Effect::Exclude
        };
        Rule::again(effect, &text.pattern)
    };
    let rules = rules.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    Selection::new(&rules, sizes).map(Some)
}
