//! Many jobs of one file each to one host over a long path. They are compared with eight concurrent rsync processes to
//! an unencrypted rsync daemon, and with pushes that run one after the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::ManyArgs;
use super::yard::output;
use crate::network::hosts::Hosts;
use crate::processes::session::Session;
use crate::processes::{inside, server};

/// Both hosts, and the settings of the measurement.
struct Stand<'a> {
    zmove: &'a str,
    hosts: Hosts,
    arguments: &'a ManyArgs,
    source: PathBuf,
    target: PathBuf,
    home: PathBuf,
}

pub(super) fn many(zmove: &str, arguments: &ManyArgs) -> Result<ExitCode> {
    let session = Session::open()?;
    let hosts = Hosts::open(&session, &arguments.link, arguments.rtt)?;
    let directory = match &arguments.dir {
        Some(directory) => directory.join(format!("zmove-lab-{}", session.id())),
        None => session.subdirectory("jobs")?,
    };
    let [source, target] = ["source", "target"].map(|name| directory.join(name));
    let home = session.subdirectory("client")?;
    let stand = Stand {
        zmove,
        hosts,
        arguments,
        source,
        target,
        home,
    };
    let raced = stand.race(&session);
    let cleared = fs::remove_dir_all(&directory).context("failed to clear up");
    raced.and(cleared).map(|()| ExitCode::SUCCESS)
}

impl Stand<'_> {
    fn race(&self, session: &Session) -> Result<()> {
        let ManyArgs {
            count,
            size,
            max,
            rtt,
            ..
        } = self.arguments;
        self.plant()?;
        let mut daemon = self.serve(session)?;
        let mut rsyncd = self.serve_rsync(session)?;
        println!(
            "{count} files of {} bytes over {} ms, {max} jobs at once",
            size.0,
            rtt.milliseconds()
        );
        let runners: [(&str, &dyn Fn() -> Result<()>); 3] = [
            ("jobs", &|| self.jobs()),
            ("rsync, eight at a time", &|| self.rsync()),
            ("pushes in turn", &|| self.pushes()),
        ];
        for (name, run) in runners {
            fs::create_dir_all(&self.target).context("failed to make the target")?;
            let begun = Instant::now();
            run().context(name.to_owned())?;
            println!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
            self.judge().context(name.to_owned())?;
            fs::remove_dir_all(&self.target).context("failed to empty the target")?;
        }
        for server in [&mut daemon, &mut rsyncd] {
            server.kill().context("failed to end a server")?;
            server.wait().context("failed to wait for a server")?;
        }
        Ok(())
    }

    /// Creates the files. All of them are hard links to one file, so that they stay in memory.
    fn plant(&self) -> Result<()> {
        let make = || -> std::io::Result<()> {
            fs::create_dir_all(&self.source)?;
            fs::create_dir_all(&self.target)?;
            let first = self.file(0);
            let byte = |at: u64| u8::try_from((at % 251) ^ (at / 4099 % 4)).unwrap_or(0);
            let bytes: Vec<u8> = (0..self.arguments.size.0).map(byte).collect();
            fs::write(&first, bytes)?;
            (1..self.arguments.count)
                .try_for_each(|number| fs::hard_link(&first, self.file(number)))
        };
        make().context("failed to make the files")
    }

    fn file(&self, number: usize) -> PathBuf {
        self.source.join(format!("f{number}"))
    }

    fn at_source(&self, program: &str) -> Result<Command> {
        let mut command = inside::command(Some(&self.hosts.source), None, program)?;
        command.env("ZMOVE_HOME", &self.home);
        Ok(command)
    }

    fn serve(&self, session: &Session) -> Result<std::process::Child> {
        let home = session.subdirectory("daemon")?;
        let mut show = Command::new(self.zmove);
        show.env("ZMOVE_HOME", &self.home).args(["key", "show"]);
        let shown = output(show)?;
        let key = shown
            .split_whitespace()
            .rfind(|word| word.starts_with("SHA256:"))
            .context("no key")?;
        let mut allow = Command::new(self.zmove);
        allow
            .env("ZMOVE_HOME", &home)
            .args(["allow", key, "--name", "lab", "--write", "--root"]);
        allow.arg(&self.target);
        output(allow)?;
        let mut serve = inside::command(Some(&self.hosts.target), None, self.zmove)?;
        serve
            .env("ZMOVE_HOME", &home)
            .args(["serve", "--listen"])
            .arg(self.address(PORT));
        server::start(
            serve,
            &self.hosts.target,
            PORT,
            &session.directory().join("serve.log"),
        )
    }

    fn serve_rsync(&self, session: &Session) -> Result<std::process::Child> {
        let config = session.directory().join("rsyncd.conf");
        let text = format!(
            "port = {RSYNC_PORT}\nuse chroot = no\nmax connections = 0\nlog file = /dev/null\n\
             [target]\npath = {}\nuid = 0\ngid = 0\nread only = no\n",
            self.target.display()
        );
        fs::write(&config, text).context("failed to write rsyncd.conf")?;
        let mut daemon = inside::command(Some(&self.hosts.target), None, "rsync")?;
        daemon
            .args(["--daemon", "--no-detach", "--config"])
            .arg(&config);
        server::start(
            daemon,
            &self.hosts.target,
            RSYNC_PORT,
            &session.directory().join("rsyncd.log"),
        )
    }

    fn address(&self, port: u16) -> String {
        format!("{}:{port}", self.hosts.target_address)
    }

    fn there(&self) -> String {
        format!("{}:{}/", self.address(PORT), self.target.display())
    }

    fn jobs(&self) -> Result<()> {
        let max = self.arguments.max.to_string();
        let mut runner = self.at_source(self.zmove)?;
        runner
            .args(["runner", "--max", &max, "--max-per-host", &max])
            .stdout(std::process::Stdio::null());
        let mut runner = runner.spawn().context("failed to start a runner")?;
        let done = self.submit_and_wait();
        runner.kill().context("failed to end the runner")?;
        runner.wait().context("failed to wait for the runner")?;
        done
    }

    fn submit_and_wait(&self) -> Result<()> {
        let begun = Instant::now();
        let mut ids = Vec::new();
        for number in 0..self.arguments.count {
            let mut submit = self.at_source(self.zmove)?;
            submit
                .args(["submit", "--accept-new"])
                .arg(self.file(number))
                .arg(self.there());
            ids.push(output(submit)?);
        }
        println!("  submitted after {:.1} s", begun.elapsed().as_secs_f64());
        for id in ids {
            let mut wait = self.at_source(self.zmove)?;
            wait.args(["job", &id, "wait"]);
            output(wait)?;
        }
        Ok(())
    }

    fn rsync(&self) -> Result<()> {
        let mut shell = self.at_source("sh")?;
        let line = format!(
            "ls '{}' | xargs -P 8 -I{{}} rsync -a --whole-file '{}'/{{}} rsync://{}/target/",
            self.source.display(),
            self.source.display(),
            self.address(RSYNC_PORT)
        );
        output({
            shell.args(["-c", &line]);
            shell
        })
        .map(drop)
    }

    fn pushes(&self) -> Result<()> {
        for number in 0..self.arguments.count {
            let mut push = self.at_source(self.zmove)?;
            push.args(["push", "--quiet", "--accept-new"])
                .arg(self.file(number))
                .arg(self.there());
            output(push)?;
        }
        Ok(())
    }

    /// Checks that all files have arrived in full.
    fn judge(&self) -> Result<()> {
        let is_whole = |path: &Path| {
            path.metadata()
                .is_ok_and(|found| found.len() == self.arguments.size.0)
        };
        let whole = (0..self.arguments.count)
            .filter(|number| is_whole(&self.target.join(format!("f{number}"))))
            .count();
        if whole != self.arguments.count {
            bail!("{whole} files of {} have arrived", self.arguments.count);
        }
        Ok(())
    }
}

const PORT: u16 = 5899;
const RSYNC_PORT: u16 = 8730;
