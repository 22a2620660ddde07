//! Determines which directories of the target are replaced by a file or link of the same name, and the rules that
//! protect directories from that.

use zmove_scan::{Effect, Rule, Selection};
use zmove_wire::limits::{SELECTION_RULE_BYTES_MAX, SELECTION_RULES_MAX};
use zmove_wire::{DirectoryReplacement, Open, RuleText};

use crate::args::PushArgs;

/// Adds to an opening which directories are replaced by a file or link, and the rules that protect some of them. If
/// there are more rules than a receiver accepts, no directory is replaced.
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

/// Returns the rules of a selection in their wire form.
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
