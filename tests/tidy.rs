//! House rules that no compiler checks: file locations, dependencies between crates, and lengths of files.
//!
//! Each test collects all violations and reports them together. `docs/STYLE.md` gives the reasons.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// Names allowed at the top level, in addition to dot files and licenses.
const TOP_NAMES: [&str; 7] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    "benches",
    "tests",
    "docs",
    "README.md",
];

/// Allowed dependencies between the crates of the workspace.
const ARROWS: [(&str, &[&str]); 21] = [
    (
        "cli",
        &[
            "api",
            "cluster",
            "daemon",
            "disk",
            "engine",
            "far",
            "jobs",
            "receiver",
            "scan",
            "sender",
            "sockopt",
            "tools",
            "transport",
            "types",
            "uring",
            "watch",
            "wire",
        ],
    ),
    (
        "far",
        &[
            "daemon",
            "disk",
            "engine",
            "sockopt",
            "transport",
            "types",
            "uring",
            "wire",
        ],
    ),
    (
        "cluster",
        &["disk", "engine", "scan", "sender", "types", "wire"],
    ),
    (
        "engine",
        &[
            "disk",
            "receiver",
            "scan",
            "sender",
            "transport",
            "types",
            "wire",
        ],
    ),
    (
        "daemon",
        &[
            "disk",
            "engine",
            "receiver",
            "scan",
            "sender",
            "transport",
            "types",
            "wire",
        ],
    ),
    (
        "sender",
        &["chunk", "disk", "scan", "transport", "types", "wire"],
    ),
    (
        "receiver",
        &["chunk", "disk", "scan", "transport", "types", "wire"],
    ),
    ("transport", &["sockopt", "types", "wire"]),
    (
        "tools",
        &["disk", "receiver", "scan", "sender", "types", "wire"],
    ),
    ("wire", &["types"]),
    ("disk", &["chunk", "types", "uring"]),
    ("scan", &["chunk", "disk", "types"]),
    ("chunk", &["types"]),
    ("sockopt", &[]),
    ("api", &["jobs"]),
    ("jobs", &[]),
    ("types", &[]),
    ("uring", &["types"]),
    ("watch", &[]),
    ("lab", &["tools", "types"]),
    (
        "fuzz",
        &[
            "cli",
            "engine",
            "receiver",
            "scan",
            "tools",
            "transport",
            "types",
            "wire",
        ],
    ),
];

/// External crates that only some crates may use.
const RESERVED: [(&str, &[&str]); 37] = [
    ("axum", &["api"]),
    ("utoipa", &["api", "jobs"]),
    ("utoipa-axum", &["api"]),
    (
        "tokio",
        &[
            "api",
            "cli",
            "cluster",
            "daemon",
            "engine",
            "far",
            "jobs",
            "receiver",
            "sender",
            "transport",
        ],
    ),
    ("rustls", &["cli", "jobs", "transport"]),
    ("rustls-webpki", &["transport"]),
    ("quinn", &["transport"]),
    ("quinn-proto", &["transport"]),
    ("clap", &["cli", "lab"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("indicatif", &["cli", "lab"]),
    ("anyhow", &["cli", "far", "lab"]),
    ("svg", &["lab", "tools"]),
    ("hyper", &["api", "cli", "jobs"]),
    ("listenfd", &["cli"]),
    ("prometheus-client", &["cli"]),
    ("sd-notify", &["cli"]),
    ("toml", &["cli", "jobs"]),
    ("tracing", &["cli"]),
    ("tracing-subscriber", &["cli"]),
    (
        "blake3",
        &["chunk", "cluster", "lab", "receiver", "sender", "transport"],
    ),
    ("rayon", &["chunk", "scan"]),
    ("globset", &["scan"]),
    ("io-uring", &["uring"]),
    ("libc", &["lab", "sockopt", "uring"]),
    ("landlock", &["cli"]),
    ("nix", &["cli"]),
    ("cap", &["fuzz"]),
    ("chrono", &["jobs"]),
    ("croner", &["jobs"]),
    ("rusqlite", &["jobs"]),
    ("rustls-native-certs", &["jobs"]),
    ("async-nats", &["cluster"]),
    ("nkeys", &["cluster", "lab"]),
    ("libfuzzer-sys", &["fuzz"]),
    ("fuser", &["lab"]),
];

/// Crates that may contain `unsafe` code.
const UNSAFE_CRATES: [&str; 3] = ["lab", "sockopt", "uring"];

/// Words with which no documentation comment may begin, since they refer to something that the comment has not named.
const OPENINGS_WITHOUT_SUBJECT: [&str; 7] = ["Its", "Their", "It", "They", "Those", "Who", "As"];

const LINES_MAX: usize = 800;
/// Maximum number of files in a folder.
const FILES_OF_FOLDER_MAX: usize = 14;
const COLUMNS_MAX: usize = 120;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

fn crates() -> Vec<PathBuf> {
    let mut crates = entries(&root().join("crates"));
    // The Python package has no Cargo manifest.
    crates.retain(|path| path.join("Cargo.toml").exists());
    crates
}

/// Returns all Rust files below a directory, except generated and vendored ones.
fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in entries(directory) {
        // Cargo marks its build directories. A module may be named `target`.
        let is_built = || path.join("CACHEDIR.TAG").exists();
        if path.is_dir() && !matches!(name(&path), "corpus" | "artifacts") && !is_built() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn all_rust_files() -> Vec<PathBuf> {
    ["crates", "tests", "benches"]
        .into_iter()
        .flat_map(|part| rust_files(&root().join(part)))
        .collect()
}

/// Whether a file contains only tests: its name is `tests.rs`, or it is in a directory `tests`.
fn is_test(path: &Path) -> bool {
    let below_root = path.strip_prefix(root()).unwrap_or(path);
    below_root
        .components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{} violations:\n  {}",
        violations.len(),
        violations.join("\n  ")
    );
}

/// Returns the dependencies of a crate by section, including those for tests and the build.
fn dependencies(manifest: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut sections: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = String::new();
    for line in read_to_string(manifest).unwrap().lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
            // `[dependencies.tokio]` and `[target.'cfg(…)'.dependencies]` are sections too.
            if let Some((table, dependency)) = section.clone().rsplit_once("dependencies.") {
                section = format!("{table}dependencies");
                sections
                    .entry(section.clone())
                    .or_default()
                    .insert(dependency.to_owned());
                section.clear();
            }
        } else if section.ends_with("dependencies") && !line.starts_with('#') && line.contains('=')
        {
            let dependency = line
                .split(['.', '=', ' '])
                .next()
                .unwrap()
                .trim_matches('"');
            sections
                .entry(section.clone())
                .or_default()
                .insert(dependency.to_owned());
        }
    }
    sections
}

#[test]
fn the_top_holds_what_it_should() {
    let fits = |name: &str| {
        TOP_NAMES.contains(&name)
            || name.starts_with('.')
            || name.starts_with("LICENSE")
            || name == "target"
    };
    let present: Vec<_> = entries(root())
        .iter()
        .map(|path| name(path).to_owned())
        .collect();
    let mut violations: Vec<_> = present
        .iter()
        .filter(|name| !fits(name))
        .map(|name| format!("'{name}' does not belong"))
        .collect();
    let missing = TOP_NAMES
        .iter()
        .filter(|name| !present.iter().any(|present| present == *name));
    violations.extend(missing.map(|name| format!("'{name}' is missing")));
    if !present.iter().any(|name| name.starts_with("LICENSE")) {
        violations.push("no LICENSE* is there".to_owned());
    }
    assert_none(&violations);
}

#[test]
fn crates_use_only_what_they_may() {
    let arrows = BTreeMap::from(ARROWS);
    let mut violations = Vec::new();
    for directory in crates() {
        let crate_name = name(&directory);
        let Some(allowed) = arrows.get(crate_name) else {
            violations.push(format!("{crate_name} has no entry in the table of arrows"));
            continue;
        };
        for (section, used) in dependencies(&directory.join("Cargo.toml")) {
            let own = used
                .iter()
                .filter_map(|dependency| dependency.strip_prefix("zmove-"));
            for used in own.filter(|used| !allowed.contains(used)) {
                violations.push(format!("{crate_name} → {used} in [{section}]"));
            }
        }
        if crate_name == "types" {
            let used = dependencies(&directory.join("Cargo.toml")).remove("dependencies");
            if used.is_some_and(|used| used.iter().any(|dependency| dependency != "serde")) {
                violations.push("types has a dependency beside serde".to_owned());
            }
        }
    }
    assert_none(&violations);
}

#[test]
fn outside_crates_stay_where_they_belong() {
    let mut violations = Vec::new();
    for directory in crates() {
        let crate_name = name(&directory);
        for (section, used) in dependencies(&directory.join("Cargo.toml")) {
            // A test may use any crate.
            if section == "dev-dependencies" {
                continue;
            }
            let misplaced = RESERVED
                .iter()
                .filter(|(_, users)| !users.contains(&crate_name));
            let misplaced = misplaced.filter(|(reserved, _)| used.contains(*reserved));
            violations.extend(
                misplaced.map(|(reserved, _)| format!("{crate_name} → {reserved} in [{section}]")),
            );
        }
    }
    assert_none(&violations);
}

#[test]
fn files_are_short() {
    let mut violations = Vec::new();
    for path in all_rust_files().into_iter().filter(|path| !is_test(path)) {
        let text = read_to_string(&path).unwrap();
        let lines = text
            .lines()
            .take_while(|line| line.trim() != "#[cfg(test)]")
            .count();
        if lines > LINES_MAX {
            violations.push(format!(
                "{} has {lines} lines without its tests",
                shown(&path)
            ));
        }
    }
    assert_none(&violations);
}

#[test]
fn folders_hold_few_files() {
    let mut files = BTreeMap::<PathBuf, usize>::new();
    for path in all_rust_files() {
        *files.entry(path.parent().unwrap().to_owned()).or_default() += 1;
    }
    let full = files
        .into_iter()
        .filter(|(_, number)| *number > FILES_OF_FOLDER_MAX);
    let violations: Vec<_> = full
        .map(|(folder, number)| format!("{} has {number} files", shown(&folder)))
        .collect();
    assert_none(&violations);
}

/// Tables and fenced blocks in documents may be wider, and so may strings in code.
#[test]
fn lines_fit_into_a_window() {
    let mut violations = Vec::new();
    let mut documents = entries(&root().join("docs"));
    documents.push(root().join("README.md"));
    for path in documents
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
    {
        let text = read_to_string(&path).unwrap();
        let mut fenced = false;
        for (number, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if !fenced && !line.starts_with('|') && line.chars().count() > COLUMNS_MAX {
                violations.push(format!("{}:{}", shown(&path), number + 1));
            }
        }
    }
    for path in all_rust_files() {
        let text = read_to_string(&path).unwrap();
        let comments = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.trim_start().starts_with("//"));
        let wide = comments.filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        violations.extend(wide.map(|(number, _)| format!("{}:{}", shown(&path), number + 1)));
    }
    assert_none(&violations);
}

/// A test that a document names as `module::name` is in a file or folder of that module, and in the crate of `crate:
/// module::name`. A document may also name a module of tests as a whole.
#[test]
fn tests_that_documents_name_exist() {
    let files = all_rust_files();
    let mut functions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in &files {
        for line in read_to_string(path).unwrap().lines() {
            let Some((_, rest)) = line.split_once("fn ") else {
                continue;
            };
            let name = rest
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .next()
                .unwrap();
            functions
                .entry(name.to_owned())
                .or_default()
                .push(shown(path));
        }
    }
    let mut violations = Vec::new();
    for document in ["docs/THREAT_MODEL.md", "docs/RELIABILITY.md"] {
        let text = read_to_string(root().join(document)).unwrap();
        for code in text.split('`').skip(1).step_by(2) {
            let (place, named) = code.rsplit_once(": ").unwrap_or(("", code));
            // Types and addresses contain other characters.
            let is_name = |part: &str| {
                let is_part =
                    |letter: char| letter.is_ascii_lowercase() || "_0123456789".contains(letter);
                part == "…" || !part.is_empty() && part.chars().all(is_part)
            };
            let Some((modules, name)) = named.rsplit_once("::") else {
                continue;
            };
            if !named.split("::").all(is_name) {
                continue;
            }
            let directory = match place.strip_prefix("zmove-") {
                Some(name) => format!("crates/{name}/"),
                None => String::new(),
            };
            let is_of = |file: &str, modules: &str| {
                let mut modules = modules
                    .split("::")
                    .filter(|module| !["tests", "…"].contains(module));
                file.starts_with(&directory)
                    && modules.all(|module| file.split(['/', '.']).any(|part| part == module))
            };
            let is_function = functions
                .get(name)
                .is_some_and(|files| files.iter().any(|file| is_of(file, modules)));
            let is_module = || files.iter().any(|file| is_of(&shown(file), named));
            if !is_function && !is_module() {
                violations.push(format!("{document}: {code}"));
            }
        }
    }
    assert_none(&violations);
}

/// There is only one version of the protocol and no earlier release.
#[test]
fn nothing_speaks_of_other_versions() {
    let documents = ["docs", "docs/decisions", ".github"]
        .iter()
        .flat_map(|directory| entries(&root().join(directory)))
        .chain([root().join("README.md")])
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let texts = documents.map(|path| {
        let text = read_to_string(&path).unwrap();
        (path, text)
    });
    let sources = all_rust_files().into_iter().filter(|path| !is_test(path));
    let shipped = sources.map(|path| {
        let text = read_to_string(&path).unwrap();
        let shipped = text.split("mod tests {").next().unwrap().to_owned();
        (path, shipped)
    });
    let mut violations = Vec::new();
    for (path, text) in texts.chain(shipped) {
        // A phrase may be split over two lines.
        let words: Vec<_> = text.split_whitespace().collect();
        let text = words.join(" ").to_lowercase();
        let versions = text.split("protocol version ").skip(1);
        let is_other = |version: &str| version.starts_with(|digit| ('2'..='9').contains(&digit));
        let has_version = versions.into_iter().any(is_other);
        if has_version || text.contains("earlier release") {
            violations.push(shown(&path));
        }
    }
    assert_none(&violations);
}

/// Contributors find only the recipes that the page lists.
#[test]
fn the_page_for_contributors_lists_all_recipes() {
    let page = read_to_string(root().join(".github/CONTRIBUTING.md")).unwrap();
    let recipes = read_to_string(root().join(".justfile")).unwrap();
    let is_letter = |letter: char| letter.is_ascii_lowercase();
    let missing = recipes
        .lines()
        .filter(|line| line.starts_with(is_letter) && !line.contains(":=") && line.contains(':'))
        .filter_map(|line| line.split([' ', ':']).next())
        .filter(|name| *name != "default" && !page.contains(&format!("| `just {name}` |")));
    assert_none(&missing.map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn the_guide_lists_its_sections() {
    let guide = read_to_string(root().join("docs/GUIDE.md")).unwrap();
    let is_of_anchor = |character: &char| character.is_alphanumeric() || *character == '-';
    let line = |heading: &str| {
        let anchor: String = heading
            .to_lowercase()
            .replace(' ', "-")
            .chars()
            .filter(is_of_anchor)
            .collect();
        format!("- [{heading}](#{anchor})")
    };
    let sections: Vec<_> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(line)
        .collect();
    let listed = guide.lines().take_while(|line| !line.starts_with("## "));
    let listed: Vec<_> = listed.filter(|line| line.starts_with("- [")).collect();
    assert_eq!(listed, sections);
}

#[test]
fn files_say_what_they_are() {
    let silent = |path: &PathBuf| !read_to_string(path).unwrap().starts_with("//!");
    let violations: Vec<_> = all_rust_files()
        .iter()
        .filter(|path| silent(path))
        .map(|path| shown(path))
        .collect();
    assert_none(&violations);
}

/// A file and its submodules count as one. Two files next to each other count as separate, wherever they are.
#[test]
fn files_import_in_one_direction() {
    let in_circles: Vec<_> = crates()
        .into_iter()
        .map(|path| (path.clone(), circle_in(&path.join("src"))))
        .collect();
    let violations: Vec<_> = in_circles
        .iter()
        .filter(|(_, circle)| !circle.is_empty())
        .map(|(path, circle)| format!("crate {}, files in a circle: {circle:?}", name(path)))
        .collect();
    assert_none(&violations);
}

/// Returns the files that import each other in a cycle, as module paths.
fn circle_in(source: &Path) -> Vec<String> {
    let files = rust_files(source)
        .into_iter()
        .filter(|file| !["lib.rs", "main.rs"].contains(&name(file)));
    let modules: BTreeMap<String, PathBuf> = files
        .map(|file| {
            (
                file.strip_prefix(source)
                    .unwrap()
                    .with_extension("")
                    .to_str()
                    .unwrap()
                    .replace('/', "::"),
                file,
            )
        })
        .collect();
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, file) in &modules {
        let shipped = shipped_text(file);
        let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        let mut paths = Vec::new();
        for (word, above) in [("crate::", ""), ("super::", parent)] {
            for (at, _) in shipped.match_indices(word) {
                add_paths(&shipped[at + word.len()..], above, &mut paths);
            }
        }
        let is_above = |other: &&str| !is_part_of(module, other);
        let imported = paths
            .iter()
            .filter_map(|path| module_of(path, &modules))
            .filter(is_above);
        imports.insert(module, imported.collect());
    }
    // A file is in no cycle if it imports none of the remaining files, or none of them imports it.
    loop {
        let before = imports.len();
        let imported: BTreeSet<_> = imports.values().flatten().copied().collect();
        let left: BTreeSet<_> = imports.keys().copied().collect();
        imports.retain(|module, others| imported.contains(module) && !others.is_disjoint(&left));
        if imports.len() == before {
            return imports.into_keys().map(str::to_owned).collect();
        }
    }
}

/// Returns the code of a file without comments and without its test module.
fn shipped_text(file: &Path) -> String {
    let text = read_to_string(file).unwrap();
    let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let shipped = shipped
        .split("#[cfg(test)]\npub(crate) mod tests {")
        .next()
        .unwrap();
    let code = |line: &str| line.split("//").next().unwrap().to_owned() + "\n";
    if name(file) == "tests.rs" {
        String::new()
    } else {
        shipped.lines().map(code).collect()
    }
}

/// Adds each path of the `use` tree at the start of `text`. Returns the tree's length.
fn add_paths(text: &str, above: &str, paths: &mut Vec<String>) -> usize {
    if let Some(list) = text.strip_prefix('{') {
        let mut at = 0;
        while !list[at..].starts_with('}') && at < list.len() {
            at += add_paths(&list[at..], above, paths)
                .max(list[at..].chars().next().map_or(1, char::len_utf8));
        }
        return at + 2;
    }
    let word = text
        .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .unwrap_or(text.len());
    if word == 0 {
        return 0;
    }
    let path = if above.is_empty() {
        text[..word].to_owned()
    } else {
        format!("{above}::{}", &text[..word])
    };
    if let Some(rest) = text[word..].strip_prefix("::") {
        return word + 2 + add_paths(rest, &path, paths);
    }
    paths.push(path);
    word
}

/// Returns the file that contains the item of a path.
fn module_of<'m>(path: &str, modules: &'m BTreeMap<String, PathBuf>) -> Option<&'m str> {
    let mut path = path;
    loop {
        if let Some((module, _)) = modules.get_key_value(path) {
            return Some(module);
        }
        path = path.rsplit_once("::")?.0;
    }
}

fn is_part_of(part: &str, whole: &str) -> bool {
    part.strip_prefix(whole)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// An editor or a web page shows a documentation comment alone, without the preceding text.
#[test]
fn documentation_begins_with_its_subject() {
    let mut violations = Vec::new();
    for path in all_rust_files() {
        let text = read_to_string(&path).unwrap();
        let mut is_inside = false;
        for (number, line) in text.lines().enumerate() {
            let words = line.trim_start().strip_prefix("/// ");
            let first = words
                .and_then(|words| words.split(' ').next())
                .filter(|_| !is_inside);
            if let Some(word) = first.filter(|word| OPENINGS_WITHOUT_SUBJECT.contains(word)) {
                violations.push(format!(
                    "{}:{}: '{word}' has no subject",
                    shown(&path),
                    number + 1
                ));
            }
            is_inside = line.trim_start().starts_with("///");
        }
    }
    assert_none(&violations);
}

#[test]
fn no_file_is_called_mod() {
    let violations: Vec<_> = all_rust_files()
        .iter()
        .filter(|path| name(path) == "mod.rs")
        .map(|path| shown(path))
        .collect();
    assert_none(&violations);
}

/// Every file is declared by a `mod` of its parent, beginning at the roots of each crate.
#[test]
fn no_file_is_dead() {
    let mut violations = Vec::new();
    for directory in crates() {
        let sources = directory.join("src");
        let mut reached = BTreeSet::new();
        for root in ["lib.rs", "main.rs"].map(|name| sources.join(name)) {
            if root.exists() {
                reach(&root, &sources, &mut reached);
            }
        }
        let bins = sources.join("bin");
        let dead = rust_files(&sources)
            .into_iter()
            .filter(|path| !reached.contains(path) && !path.starts_with(&bins));
        violations.extend(dead.map(|path| shown(&path)));
    }
    assert_none(&violations);
}

/// Adds a file and all files that its `mod` lines declare. Its child modules are in `children`.
fn reach(file: &Path, children: &Path, reached: &mut BTreeSet<PathBuf>) {
    reached.insert(file.to_owned());
    for line in read_to_string(file).unwrap().lines().map(str::trim) {
        let Some(child) = module_named(line) else {
            continue;
        };
        let path = children.join(format!("{child}.rs"));
        if path.exists() {
            reach(&path, &children.join(child), reached);
        }
    }
}

/// Returns the name in `mod name;` with any visibility.
fn module_named(line: &str) -> Option<&str> {
    let declaration = line.strip_suffix(';')?;
    let (visibility, name) = declaration.rsplit_once("mod ")?;
    let visible = visibility.is_empty() || visibility.starts_with("pub");
    (visible && !name.contains(|c: char| !c.is_alphanumeric() && c != '_')).then_some(name)
}

#[test]
fn every_expectation_has_its_reason() {
    let mut violations = Vec::new();
    let openings = ["#", "#!"].map(|hash| format!("{hash}[expect("));
    for path in all_rust_files() {
        let text = read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("[expect(") {
            let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let line = text[line_start..].trim_start();
            if !openings.iter().any(|opening| line.starts_with(opening)) {
                continue;
            }
            let attribute = &text[at..at + text[at..].find(")]").unwrap_or(0)];
            if !attribute.contains("reason = \"") {
                violations.push(format!(
                    "{}:{}",
                    shown(&path),
                    1 + text[..at].matches('\n').count()
                ));
            }
        }
    }
    assert_none(&violations);
}

/// In that file, the type of each call requires a permit.
#[test]
fn attributes_at_a_target_are_changed_in_one_file_alone() {
    const CALLS: [&str; 17] = [
        "fs::chmod(",
        "fs::chmodat(",
        "fs::fchmod(",
        "fs::chown(",
        "fs::chownat(",
        "fs::fchown(",
        "fs::futimens(",
        "fs::utimensat(",
        "fs::setxattr(",
        "fs::lsetxattr(",
        "fs::fsetxattr(",
        "fs::removexattr(",
        "fs::lremovexattr(",
        "fs::fremovexattr(",
        "fs::set_permissions(",
        ".set_permissions(",
        "fs::create_dir_all(",
    ];
    let mut violations = Vec::new();
    for of in ["disk", "receiver"] {
        for file in rust_files(&root().join("crates").join(of).join("src")) {
            if is_test(&file) || matches!(name(&file), "attributes.rs" | "fuzzing.rs") {
                continue;
            }
            let shipped = shipped_text(&file);
            let found = CALLS.into_iter().filter(|call| shipped.contains(call));
            violations.extend(found.map(|call| format!("{}: {call}", shown(&file))));
        }
    }
    assert_none(&violations);
}

#[test]
fn unsafe_code_is_in_its_crates_alone() {
    let mut violations = Vec::new();
    let exempt: Vec<_> = UNSAFE_CRATES
        .map(|name| root().join("crates").join(name))
        .into();
    let own = root().join("tests/tidy.rs");
    for path in all_rust_files() {
        if path == own || exempt.iter().any(|directory| path.starts_with(directory)) {
            continue;
        }
        let text = read_to_string(&path).unwrap();
        let words = |line: &str| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "unsafe")
        };
        let code = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"));
        let found = code.filter(|(_, line)| words(line));
        violations.extend(found.map(|(number, _)| format!("{}:{}", shown(&path), number + 1)));
    }
    assert_none(&violations);
}
