//! Lists the targets, writes their seeds, and runs a target on given files without libFuzzer.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

use zmove_fuzz::{Target, decodes, list_targets};

const USAGE: &str = "zmove-fuzz list | zmove-fuzz seeds TARGET DIR | zmove-fuzz run TARGET FILE... | zmove-fuzz decoding TARGET FILE...";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list"] => {
            list_targets();
            Ok(())
        }
        ["seeds", name, directory] => {
            named(name).and_then(|target| target.write_seeds(Path::new(directory)))
        }
        ["run", name, ref files @ ..] => named(name).and_then(|target| run(target, files)),
        ["decoding", name, ref files @ ..] => list_decoding(name, files),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn named(name: &str) -> io::Result<Target> {
    Target::named(name).ok_or_else(|| io::Error::other(format!("there is no target '{name}'")))
}

/// Lists the files that can be decoded.
fn list_decoding(name: &str, files: &[&str]) -> io::Result<()> {
    for file in files {
        if decodes(name, &fs::read(file)?) == Some(true) {
            println!("{file}");
        }
    }
    Ok(())
}

fn run(target: Target, files: &[&str]) -> io::Result<()> {
    files.iter().try_for_each(|file| {
        println!("{file}");
        fs::read(file).map(|input| target.run(&input))
    })
}
