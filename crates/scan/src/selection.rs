//! Selects entries by name, with rules in gitignore syntax, and files by size.
//!
//! The walk checks each name before it looks up the entry. So an excluded entry costs no system call, and an excluded
//! directory is not opened. An entry is checked after the look-up only if the result depends on its kind (a rule that
//! ends in `/`) or on its size. All rules are compiled into one set, which `globset` matches in one pass. The last
//! matching rule decides. The walk counts excluded entries. An excluded directory counts as one entry.
//!
//! A mirror also checks names that exist only at the target. Sizes are ignored for these names, because a file that is
//! excluded by its size still exists at the source.
//!
//! **Invariant:** the result for a name depends only on the target path, the kind and the rules, so both sides of a
//! transfer get the same result.

mod directory_filter;
mod pattern;
mod rsync_rule;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use globset::{Candidate, GlobSet, GlobSetBuilder};
use zmove_types::RelPath;

use pattern::AppliesTo;

pub(crate) use directory_filter::DirectoryFilter;
pub use pattern::{Effect, PatternError, Rule};

/// A selection of entries. The last rule that matches a path decides, and a path without a matching rule is included.
/// Rules match paths relative to the target, so the rule `/x` matches the entry `x` directly in the target. Entries
/// below an excluded directory are not checked.
#[derive(Clone, Debug)]
pub struct Selection {
    set: GlobSet,
    rules: Vec<Rule>,
    /// For each rule, whether it has matched a name during a scan. A rule that never matches is probably a mistake.
    matched: Arc<[AtomicBool]>,
    sizes: RangeInclusive<u64>,
}

/// The kind of an entry, as far as rules distinguish kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory, to which rules that end in `/` apply too.
    Directory,
    /// An entry that is not a directory.
    Other,
}

/// The effect of the rules on a path, for each possible kind of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RuleEffect {
    directory: Effect,
    other: Effect,
}

impl Selection {
    /// Creates a selection from `rules`, in order, and from the allowed `sizes` of regular files in bytes.
    ///
    /// # Errors
    /// Returns [`PatternError::Compile`] if the patterns together are too large.
    pub fn new(rules: &[Rule], sizes: RangeInclusive<u64>) -> Result<Self, PatternError> {
        let mut set = GlobSetBuilder::new();
        for rule in rules {
            set.add(rule.glob.clone());
        }
        let set = set.build().map_err(PatternError::Compile)?;
        let matched = rules.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self {
            set,
            rules: rules.to_vec(),
            matched,
            sizes,
        })
    }

    /// Returns whether the rules include a path below the target. A path is included if neither the path nor a
    /// directory above it is excluded. Sizes are checked separately by [`admits_size`](Self::admits_size).
    #[must_use]
    pub fn admits(&self, path: &RelPath, kind: PathKind) -> bool {
        let bytes = path.as_bytes();
        let slashes = bytes.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
        let mut matches = Vec::new();
        let mut above = slashes.map(|(end, _)| &bytes[..end]);
        let admits = above.all(|directory| {
            self.match_rules(directory, &mut matches).directory == Effect::Include
        }) && (path.is_root()
            || self.match_rules(bytes, &mut matches).of(kind) == Effect::Include);
        self.record_matches(&matches);
        admits
    }

    /// Returns whether a regular file of this size in bytes is included.
    #[must_use]
    pub fn admits_size(&self, bytes: u64) -> bool {
        self.sizes.contains(&bytes)
    }

    /// Returns the rules in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the rules that have not matched any name so far. A rule that matches only names below excluded
    /// directories counts as unmatched.
    pub fn unmatched(&self) -> impl Iterator<Item = &Rule> {
        let rules = self.rules.iter().zip(&*self.matched);
        rules
            .filter(|(_, matched)| !matched.load(Ordering::Relaxed))
            .map(|(rule, _)| rule)
    }

    /// Records that these rules have matched a name during a scan.
    fn record_matches(&self, matches: &[usize]) {
        let matched = matches.iter().map(|index| &self.matched[*index]);
        // All threads of a scan write here. Reading the flag first avoids contention for the cache line.
        matched
            .filter(|rule| !rule.load(Ordering::Relaxed))
            .for_each(|rule| rule.store(true, Ordering::Relaxed));
    }

    /// Returns the sizes of included files in bytes.
    #[must_use]
    pub const fn sizes(&self) -> &RangeInclusive<u64> {
        &self.sizes
    }

    /// Returns whether the selection has any rules for names.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Returns the effect of the last rule that matches the path itself.
    fn match_rules(&self, path: &[u8], matches: &mut Vec<usize>) -> RuleEffect {
        self.set
            .matches_candidate_into(&Candidate::from_bytes(path), matches);
        let mut directory = None;
        for &index in matches.iter().rev() {
            let Rule {
                effect, applies_to, ..
            } = self.rules[index];
            let directory = *directory.get_or_insert(effect);
            if applies_to == AppliesTo::All {
                return RuleEffect {
                    directory,
                    other: effect,
                };
            }
        }
        RuleEffect {
            directory: directory.unwrap_or(Effect::Include),
            other: Effect::Include,
        }
    }
}

impl RuleEffect {
    fn of(self, kind: PathKind) -> Effect {
        match kind {
            PathKind::Directory => self.directory,
            PathKind::Other => self.other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    fn selection(lines: &[&str]) -> Selection {
        let rules: Vec<_> = lines
            .iter()
            .filter_map(|line| Rule::from_line(line.as_bytes()).unwrap())
            .collect();
        Selection::new(&rules, 0..=u64::MAX).unwrap()
    }

    fn admitted(lines: &[&str], path: &[u8], kind: PathKind) -> bool {
        selection(lines).admits(&RelPath::from_bytes(path).unwrap(), kind)
    }

    fn takes(lines: &[&str], path: &str) -> bool {
        admitted(lines, path.as_bytes(), PathKind::Other)
    }

    #[test]
    fn the_last_rule_that_matches_decides() {
        assert!(!takes(&["*.log"], "a/x.log"));
        assert!(takes(&["*.log", "!keep.log"], "a/keep.log"));
        assert!(!takes(&["!keep.log", "*.log"], "a/keep.log"));
        assert!(takes(&["*.log"], "a/x.txt"));
    }

    #[test]
    fn a_rule_with_a_slash_is_anchored_at_the_target() {
        assert!(!takes(&["/top"], "top"));
        assert!(takes(&["/top"], "a/top"));
        assert!(!takes(&["a/top"], "a/top"));
        assert!(takes(&["a/top"], "b/a/top"));
        assert!(!takes(&["**/a/top"], "b/a/top"));
    }

    #[test]
    fn what_is_below_a_directory_left_out_stays_out() {
        assert!(!takes(&["build/", "!keep"], "a/build/b/keep"));
        assert!(takes(&["build/*", "!build/keep"], "build/keep"));
        assert!(takes(&["build/"], "build"));
        assert!(!admitted(&["build/"], b"build", PathKind::Directory));
    }

    #[test]
    fn rules_for_directories_leave_other_kinds_to_the_rules_before() {
        let rules = ["x", "!x/"];
        assert!(!admitted(&rules, b"x", PathKind::Other));
        assert!(admitted(&rules, b"x", PathKind::Directory));
    }

    #[test]
    fn names_are_bytes() {
        assert!(!admitted(&["caf?"], b"caf\xe9", PathKind::Other));
        assert!(!admitted(&["caf[!a]"], b"caf\xe9", PathKind::Other));
        assert!(!admitted(&["café"], "café".as_bytes(), PathKind::Other));
        assert!(!admitted(&["*"], b"\xff\n", PathKind::Other));
    }

    #[test]
    fn the_target_itself_is_always_wanted() {
        assert!(selection(&["*"]).admits(&RelPath::root(), PathKind::Directory));
    }

    #[test]
    fn sizes_have_both_bounds() {
        let selection = Selection::new(&[], 10..=20).unwrap();
        let taken: Vec<_> = [9, 10, 20, 21]
            .map(|bytes| selection.admits_size(bytes))
            .into();
        assert_eq!(taken, [false, true, true, false]);
    }

    proptest! {
        #[test]
        fn an_escaped_name_matches_itself_and_nothing_else(name in "[^/\\x00]{1,12}", other in "[^/\\x00]{1,12}") {
            let escaped: String = name.chars().flat_map(|character| ['\\', character]).collect();
            let rules = [Rule::new(Effect::Exclude, format!("/{escaped}").as_bytes()).unwrap()];
            let selection = Selection::new(&rules, 0..=u64::MAX).unwrap();
            let mut matches = Vec::new();
            prop_assert_eq!(selection.match_rules(name.as_bytes(), &mut matches).other, Effect::Exclude);
            let expected = if name == other { Effect::Exclude } else { Effect::Include };
            prop_assert_eq!(selection.match_rules(other.as_bytes(), &mut matches).other, expected);
        }

        #[test]
        fn any_bytes_are_a_rule_or_refused(pattern in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(rule) = Rule::new(Effect::Exclude, &pattern) {
                Selection::new(&[rule], 0..=u64::MAX).unwrap();
            }
        }
    }
}
