//! What a control command does to a running volume.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inlock_engine::Device;
use serde_json::{Map, Value, json};

use super::Facts;
use super::facts::Status;
use crate::exit::{self, Problem};

/// A reply, but for its `ok`.
pub(crate) type Reply = anyhow::Result<Map<String, Value>>;

/// What a way of handing a volume out has to say about control commands.
pub(crate) trait HandedOut: Send + Sync {
    /// Refuses to close, as while it is mounted; otherwise begins to, and the process ends soon after.
    fn close(&self, request: &Value) -> anyhow::Result<()>;

    /// Makes the new length known to whoever uses the volume.
    fn resized(&self, _len: u64) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A volume that this process serves.
pub(crate) struct Running {
    facts: Mutex<Facts>,
    device: Arc<Device>,
    handed_out: Box<dyn HandedOut>,
}

impl Running {
    pub(crate) fn new(facts: Facts, device: Arc<Device>, handed_out: impl HandedOut + 'static) -> Self {
        Self { facts: Mutex::new(facts), device, handed_out: Box::new(handed_out) }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is. Waits for nothing.
    pub(crate) fn status(&self) -> Status {
        Status { facts: self.facts().clone(), sectors: self.device.len() / 512, suspended: false, key_present: true }
    }

    /// Carries out what may take a while, one at a time. `handed` came with the request.
    pub(crate) fn change(&self, command: &str, request: &Value, handed: Option<OwnedFd>) -> Reply {
        let _ = handed;
        match command {
            "close" => self.handed_out.close(request).map(|()| Map::new()),
            _ => Err(Problem::usage(format!("The process does not know the command '{command}'."))),
        }
    }
}

/// A reply as a line.
pub(crate) fn line(reply: &Reply) -> Vec<u8> {
    let object = match reply {
        Ok(fields) => {
            let mut fields = fields.clone();
            fields.insert("ok".to_owned(), true.into());
            Value::Object(fields)
        }
        Err(error) => {
            let status = exit::status_of(error) as u8;
            json!({"ok": false, "error": exit::message_of(error), "hint": exit::hint_of(error), "exit": status})
        }
    };
    let mut line = object.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// An error as another process shall tell it.
pub(crate) fn told(error: &anyhow::Error) -> anyhow::Error {
    Problem::Told(exit::message_of(error), exit::hint_of(error), exit::status_of(error)).into()
}
