//! The selection that the rules of a message make up.

use std::ops::RangeInclusive;

use zmove_scan::{Effect, PatternError, Rule, Selection};
use zmove_wire::RuleText;

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
