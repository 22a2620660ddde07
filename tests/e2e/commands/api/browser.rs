//! A headless Chromium, controlled by W3C WebDriver: JSON requests over HTTP to `chromedriver`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::harness::{PATIENCE, has_program, skip};
use crate::support::quiet_machine::share_machine;

/// The key of an element's id in the answers of WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A `chromedriver` and its browser. Both end when the value is dropped.
pub(super) struct Browser {
    driver: Child,
    address: String,
    session: String,
    _profile: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seen = self.say(
                "POST",
                "/execute/sync",
                &json!({ "script": "return document.body.innerText", "args": [] }),
            );
            eprintln!("the page says: {seen}");
        }
        // Ends the browser, which would otherwise outlive the driver.
        let _ended = self.say("DELETE", "", &Value::Null);
        let _gone = self.driver.kill();
        let _ended = self.driver.wait();
    }
}

impl Browser {
    /// Starts a browser with a new profile. Returns `None` if Chromium is missing.
    #[track_caller]
    pub(super) fn start() -> Option<Self> {
        if !has_program("chromedriver") || !has_program("chromium") {
            skip("there is no chromium and chromedriver (Debian: chromium, chromium-driver)");
            return None;
        }
        share_machine();
        let mut driver = Command::new("chromedriver");
        let mut driver = driver
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut words = BufReader::new(driver.stdout.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert!(
                words.read_line(&mut line).unwrap() > 0,
                "chromedriver has ended"
            );
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim().trim_end_matches('.').to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
        let profile = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{port}");
        let mut browser = Self {
            driver,
            address,
            session: String::new(),
            _profile: profile,
        };
        let profile = format!("--user-data-dir={}", browser._profile.path().display());
        let options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP dtn.example.org 127.0.0.1",
            &profile,
        ];
        let options = json!({ "args": options });
        // The test creates a self-signed certificate.
        let wanted = json!({
            "acceptInsecureCerts": true,
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let begun = browser.say(
            "POST",
            "/session",
            &json!({ "capabilities": { "alwaysMatch": wanted } }),
        );
        browser.session = format!(
            "/session/{}",
            begun["sessionId"].as_str().expect("a session")
        );
        Some(browser)
    }

    /// Sends a command and returns its value.
    fn say(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" {
            body.to_string()
        } else {
            String::new()
        };
        let mut socket = BufReader::new(TcpStream::connect(&self.address).unwrap());
        let head = format!(
            "{method} {}{path} HTTP/1.1\r\nHost: {}\r\n",
            self.session, self.address
        );
        write!(
            socket.get_mut(),
            "{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            socket.read_line(&mut line).unwrap();
            if let Some(("content-length", value)) = line.to_lowercase().split_once(':') {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        socket.read_exact(&mut answer).unwrap();
        let answer = serde_json::from_slice::<Value>(&answer);
        answer.map_or_else(
            |error| json!({ "error": error.to_string() }),
            |mut answer| answer["value"].take(),
        )
    }

    #[track_caller]
    fn command(&self, path: &str, body: &Value) -> Value {
        let value = self.say("POST", path, body);
        assert!(value["error"].is_null(), "{path} {body}: {value}");
        value
    }

    #[track_caller]
    pub(super) fn visit(&self, address: &str) {
        // The new address may differ only in the part after `#`, and then the browser would not load the page.
        self.command("/url", &json!({ "url": "about:blank" }));
        self.command("/url", &json!({ "url": address }));
    }

    /// Runs a script in the page.
    #[track_caller]
    pub(super) fn script(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub(super) fn wait_until(&self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        while self.script(&format!("return Boolean({expression})")) != true {
            assert!(Instant::now() < until, "{expression}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a command for an element once the element exists. The page may redraw or move the element at any time, so
    /// the command is retried.
    #[track_caller]
    fn ask(&self, method: &str, selector: &str, question: &str, body: &Value) -> Value {
        let until = Instant::now() + PATIENCE;
        let by_selector = json!({ "using": "css selector", "value": selector });
        loop {
            let found = self.say("POST", "/element", &by_selector);
            let answer = match found[ELEMENT].as_str() {
                Some(id) => self.say(method, &format!("/element/{id}/{question}"), body),
                None => found,
            };
            match answer["error"].as_str() {
                None => return answer,
                Some(
                    "no such element"
                    | "stale element reference"
                    | "element click intercepted"
                    | "element not interactable",
                ) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Some(_) => panic!("{question} of {selector}: {answer}"),
            }
        }
    }

    /// Clicks as a user does: a covered, hidden or disabled element cannot be clicked.
    #[track_caller]
    pub(super) fn click(&self, selector: &str) {
        self.ask("POST", selector, "click", &json!({}));
    }

    /// Types into an element.
    #[track_caller]
    pub(super) fn write(&self, selector: &str, text: &str) {
        self.ask("POST", selector, "value", &json!({ "text": text }));
    }

    /// Returns the text of an element once the element exists.
    #[track_caller]
    pub(super) fn text(&self, selector: &str) -> String {
        let text = self.ask("GET", selector, "text", &Value::Null);
        text.as_str().unwrap().to_owned()
    }

    /// Sends a DevTools command.
    #[track_caller]
    pub(super) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command(
            "/goog/cdp/execute",
            &json!({ "cmd": command, "params": parameters }),
        )
    }

    /// Returns the errors in the browser's log.
    #[track_caller]
    pub(super) fn errors(&self) -> Vec<String> {
        let log = self.command("/se/log", &json!({ "type": "browser" }));
        let severe = log
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }
}
