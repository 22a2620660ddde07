//! Starts servers and waits until they listen, without connecting to them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::processes::inside;

/// Starts a server, and returns when it listens on `port` of the namespace. Its output goes to `log`.
pub(crate) fn start(mut command: Command, namespace: &str, port: u16, log: &Path) -> Result<Child> {
    let output =
        File::create(log).with_context(|| format!("failed to create {}", log.display()))?;
    let errors = output.try_clone()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()?;
    let listening = inside::on_host(namespace, || wait_for(&mut child, port));
    if let Err(error) = listening {
        child.kill()?;
        child.wait()?;
        let said = fs::read_to_string(log).unwrap_or_default();
        return Err(error.context(format!("the server on port {port} said: {}", said.trim())));
    }
    Ok(child)
}

fn wait_for(child: &mut Child, port: u16) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if listens("/proc/thread-self/net/tcp", port)?
            || listens("/proc/thread-self/net/tcp6", port)?
        {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("the server ended with {status}");
        }
        thread::sleep(STEP);
    }
    bail!("the server does not listen after {} s", PATIENCE.as_secs())
}

/// Returns whether a socket in this list listens on the port.
fn listens(list: &str, port: u16) -> Result<bool> {
    let text = fs::read_to_string(list).with_context(|| format!("failed to read {list}"))?;
    Ok(text.lines().any(|line| line_listens(line, port)))
}

fn line_listens(line: &str, port: u16) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (Some(local), Some(&state)) = (fields.get(1), fields.get(3)) else {
        return false;
    };
    state == STATE_LISTEN && local.ends_with(&format!(":{port:04X}"))
}

const STATE_LISTEN: &str = "0A";
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_line_is_told_from_a_connected_one() {
        let listening =
            "   0: 0200630A:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        assert!(line_listens(listening, 5201));
        assert!(!line_listens(listening, 5202));
        assert!(!line_listens(&listening.replace(" 0A ", " 01 "), 5201));
    }
}
