//! Builds a selection from the rules of a message.

use std::ops::RangeInclusive;

use zmove_scan::{Effect, PatternError, Rule, Selection};
use zmove_wire::limits::{SELECTION_RULE_BYTES_MAX, within};
use zmove_wire::{RuleText, WireError};

use crate::rights::quota::Charge;

/// Memory used by a compiled rule, per byte of its pattern.
const RULE_BYTES_PER_BYTE: usize = 64;

/// Reserves the memory that the rules of a message use when they are compiled.
///
/// # Errors
/// The patterns are longer than [`SELECTION_RULE_BYTES_MAX`] in total, or the key's memory quota is exceeded.
pub fn charge_rules(rules: &[RuleText], held: &mut Charge) -> Result<(), WireError> {
    let bytes = rules.iter().map(|rule| rule.pattern.len()).sum();
    within("patterns of a selection", bytes, SELECTION_RULE_BYTES_MAX)?;
    held.grow(bytes * RULE_BYTES_PER_BYTE)
}

/// Returns the selection for these rules and file sizes, or `None` if nothing is excluded.
///
/// # Errors
/// [`PatternError`] if a pattern is invalid.
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
        Rule::recreate(effect, &text.pattern)
    };
    let rules = rules.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    Selection::new(&rules, sizes).map(Some)
}
