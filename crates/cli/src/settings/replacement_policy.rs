//! Determines which directories of the target may be replaced by a file or a link with the same name, and which rules
//! protect directories from this.

use zmove_scan::{Effect, Rule, Selection};
use zmove_wire::limits::{SELECTION_RULE_BYTES_MAX, SELECTION_RULES_MAX};
use zmove_wire::{DirectoryReplacement, Open, RuleText};

use crate::args::PushArgs;

/// Adds to the opening message which directories may be replaced by a file or a link, and the rules that protect
/// directories from this. If a receiver would refuse the number of rules, no directory is replaced.
pub(super) fn replacement_policy(args: &PushArgs, rules: Vec<RuleText>, open: Open) -> Open {
    let stays = args.verify || args.ignore_existing || !are_within_limits(&rules);
    let in_the_way = if stays {
        DirectoryReplacement::Stays
    } else if args.delete || args.force {
        DirectoryReplacement::Goes
    } else {
        DirectoryReplacement::EmptyGoes
    };
    Open {
        in_the_way,
        protected: if stays { Vec::new() } else { rules },
        removals_max: open.removals_max.or(args.max_delete),
        ..open
    }
}

/// Returns the rules of a selection in the form in which they are sent.
pub(super) fn rule_texts(selection: Option<&Selection>) -> Vec<RuleText> {
    let rules = selection.into_iter().flat_map(Selection::rules);
    let text = |rule: &Rule| RuleText {
        pattern: rule.pattern().as_bytes().to_vec(),
        includes: rule.effect() == Effect::Include,
    };
    rules.map(text).collect()
}

/// Returns whether a receiver accepts this number of rules.
pub(super) fn are_within_limits(rules: &[RuleText]) -> bool {
    let bytes: usize = rules.iter().map(|rule| rule.pattern.len()).sum();
    rules.len() <= SELECTION_RULES_MAX && bytes <= SELECTION_RULE_BYTES_MAX
}
