//! The entries that a walk excludes, compared with git.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use proptest::prop_assert_eq;
use proptest::test_runner::{Config, TestRunner};
use zmove_scan::{Effect, EntryKind, Rule, ScanConfig, Selection, scan};

use crate::support::{Found, root_of, small_batches, walk_root};

fn rules(text: &str) -> Vec<Rule> {
    text.lines()
        .filter_map(|line| Rule::from_line(line.as_bytes()).unwrap())
        .collect()
}

fn selecting(rules: &[Rule], config: ScanConfig) -> ScanConfig {
    ScanConfig {
        selection: Some(Arc::new(Selection::new(rules, 0..=u64::MAX).unwrap())),
        ..config
    }
}

fn grow(tree: &Path, files: &[&str]) {
    for file in files {
        let path = tree.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

const FILES: [&str; 30] = [
    "a",
    "b",
    "ab",
    "abc",
    "a-b",
    "a b",
    "a ",
    "#a",
    "!a",
    "a,b",
    "[a]",
    "{a,b}",
    "a*b",
    "\\",
    "]",
    "-",
    "d/a",
    "d/b",
    "d/ab",
    "d/d/a",
    "d/d/b",
    "d/e/f/a",
    "d/e/f/ab",
    "e/a",
    "e/ab/a",
    "e/ab/b",
    "e/d/a",
    "f/a/a/a",
    "f/b/a/b",
    "caf\u{e9}",
];

/// Returns the files that git would not ignore.
fn by_git(tree: &Path, repository: &Path, text: &str) -> BTreeSet<Vec<u8>> {
    let ignore = repository.join("rules");
    fs::write(&ignore, text).unwrap();
    let mut git = Command::new("git");
    git.arg("--git-dir")
        .arg(repository)
        .arg("--work-tree")
        .arg(tree)
        .current_dir(tree);
    git.args(["ls-files", "-z", "--others", "--exclude-from"])
        .arg(&ignore);
    let output = git.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    output
        .stdout
        .split(|&byte| byte == 0)
        .filter(|path| !path.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

fn by_walk(tree: &Path, rules: &[Rule]) -> BTreeSet<Vec<u8>> {
    let found = walk_root(root_of(tree, ""), &selecting(rules, small_batches()));
    assert!(found.errors.is_empty(), "{:?}", found.errors);
    let files = found
        .entries
        .into_iter()
        .filter(|(_, entry)| entry.kind == EntryKind::File);
    files.map(|(path, _)| path).collect()
}

/// Creates a tree and an empty repository next to it. Returns `None` if git is not installed.
fn grown() -> Option<tempfile::TempDir> {
    let home = tempfile::tempdir().unwrap();
    let init = Command::new("git")
        .args(["init", "--quiet", "--bare"])
        .arg(home.path().join("git"))
        .status();
    if !init.is_ok_and(|status| status.success()) {
        let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
        assert!(!required, "ZMOVE_REQUIRE_LAB=1, but git is missing");
        eprintln!("skipped: git is missing");
        return None;
    }
    grow(&home.path().join("tree"), &FILES);
    Some(home)
}

/// Rule files, in the syntax that git reads.
const RULES: [&str; 66] = [
    "a",
    "/a",
    "a/",
    "d/a",
    "/d",
    "d/",
    "*",
    "*\n!a",
    "/*\n!/d/",
    "*\n!*/\n!a",
    "ab*",
    "?",
    "??",
    "[ab]",
    "[!a]",
    "[^a]",
    "d/**",
    "d/**/a",
    "**/a",
    "**/d/a",
    "**",
    "/**",
    "**/",
    "d/*",
    "d/*/a",
    "d/**/**/a",
    "a**",
    "d/a**",
    "d**a",
    "\\#a",
    "#a",
    "\\!a",
    "!a",
    "a\\ ",
    "a ",
    "{a,b}",
    "a,b",
    "\\[a\\]",
    "[[]a]",
    "a\\*b",
    "\\\\",
    "[]]",
    "[]-]",
    "[a-]",
    "[!a-]",
    "[+-9]",
    "d[!x]a",
    "d[+-9]a",
    "[[:alpha:]]",
    "[![:alpha:]]",
    "[[:alpha:][:punct:]]",
    "caf?",
    "caf??",
    "caf*",
    "caf[!a]*",
    "e\n!e/ab",
    "e/*\n!e/ab/",
    "e/ab/\n!e/ab/b",
    "d/e/f",
    "/d/e/f/",
    "f/*/a",
    "f/**/a",
    "[\\]]",
    "[\\-]",
    "[a-c]b",
    "a[ ]b",
];

#[test]
fn git_leaves_out_the_same() {
    let Some(home) = grown() else { return };
    let (tree, repository) = (home.path().join("tree"), home.path().join("git"));
    for text in RULES {
        let rules = rules(text);
        assert_eq!(
            by_walk(&tree, &rules),
            by_git(&tree, &repository, text),
            "{text:?}"
        );
    }
}

#[test]
fn git_leaves_out_the_same_whatever_the_rules() {
    let Some(home) = grown() else { return };
    let (tree, repository) = (home.path().join("tree"), home.path().join("git"));
    // The generated patterns have no `**` next to a letter, because git treats such a `**` like one between slashes.
    let component = r"(\*\*|\*|\*?([abdef?-]|\[ab\]|\[!a\]){1,2}\*?)";
    let line = format!("!?/?{component}(/{component}){{0,3}}/?");
    let config = Config {
        cases: 100,
        failure_persistence: None,
        ..Config::default()
    };
    let same = |lines: Vec<String>| {
        // A pattern that zmove refuses matches nothing in git.
        let rules = lines.iter().map(|line| Rule::from_line(line.as_bytes()));
        let rules: Vec<_> = rules.filter_map(Result::ok).flatten().collect();
        let text = lines.join("\n");
        prop_assert_eq!(
            by_walk(&tree, &rules),
            by_git(&tree, &repository, &text),
            "{}",
            text
        );
        Ok(())
    };
    TestRunner::new(config)
        .run(&proptest::collection::vec(line.as_str(), 1..5), same)
        .unwrap();
}

#[test]
fn rules_are_anchored_where_the_target_begins() {
    let tree = tempfile::tempdir().unwrap();
    grow(tree.path(), &["x/f", "y/x/f"]);
    let found = |prefix: &str, pattern: &str| {
        let rules = [Rule::new(Effect::Exclude, pattern.as_bytes()).unwrap()];
        let mut targets = walk_root(
            root_of(tree.path(), prefix),
            &selecting(&rules, ScanConfig::default()),
        )
        .targets;
        targets.sort();
        targets
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(found("", "/x"), ["y", "y/x", "y/x/f"]);
    assert_eq!(found("run7", "/x").len(), 5);
    assert_eq!(
        found("run7", "/run7/x"),
        ["run7/y", "run7/y/x", "run7/y/x/f"]
    );
    assert!(found("run7", "run7").is_empty());
}

#[test]
fn what_is_left_out_is_counted_and_never_looked_at() {
    let tree = tempfile::tempdir().unwrap();
    grow(
        tree.path(),
        &["keep", "cache/1", "cache/2", "x.tmp", "d/y.tmp", "d/big"],
    );
    fs::write(tree.path().join("d/big"), [0; 100]).unwrap();
    let selection = Selection::new(&rules("cache/\n*.tmp"), 0..=99).unwrap();
    let config = ScanConfig {
        selection: Some(Arc::new(selection)),
        ..ScanConfig::default()
    };
    let stream = scan(vec![root_of(tree.path(), "")], &config);
    let count = stream.clone();
    let found = Found::collect(stream);
    assert_eq!(
        found.entries.keys().collect::<Vec<_>>(),
        [&b"d"[..], b"keep"]
    );
    assert_eq!(count.left_out(), 4, "cache, x.tmp, y.tmp and big");
}

#[test]
fn a_single_file_is_asked_for_too() {
    let tree = tempfile::tempdir().unwrap();
    grow(tree.path(), &["f.log"]);
    let found = |pattern: &str| {
        let rules = [Rule::new(Effect::Exclude, pattern.as_bytes()).unwrap()];
        let config = selecting(&rules, ScanConfig::default());
        walk_root(root_of(&tree.path().join("f.log"), "f.log"), &config)
            .entries
            .len()
    };
    assert_eq!([found("*.log"), found("/f.log"), found("*.txt")], [0, 0, 1]);
}
