//! The machine told by JSON: a file, or requests to a socket. The names are those of
//! Firecracker's API (its `src/firecracker/swagger/firecracker.yaml`), as far as needed.

use crate::Machine;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Takes what a configuration file says.
pub fn configure(machine: &mut Machine, told: &Value) -> Result<()> {
    for part in ["boot-source", "machine-config"] {
        take(machine, part, told.get(part).unwrap_or(&Value::Null));
    }
    Ok(())
}

fn take(machine: &mut Machine, part: &str, told: &Value) {
    let text = |name: &str| told.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| told.get(name).and_then(Value::as_u64);
    match part {
        "boot-source" => {
            machine.kernel = text("kernel_image_path").map(Into::into).or(machine.kernel.take());
            machine.initrd = text("initrd_path").map(Into::into).or(machine.initrd.take());
            machine.cmdline = text("boot_args").unwrap_or_default();
        }
        "machine-config" => {
            machine.memory = number("mem_size_mib").unwrap_or(machine.memory);
            machine.vcpus = number("vcpu_count").and_then(|n| n.try_into().ok()).unwrap_or(1);
        }
        _ => {}
    }
}

/// Answers requests until one starts the machine.
pub fn serve(machine: &mut Machine, socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    loop {
        let (stream, _) = listener.accept()?;
        let mut reader = BufReader::new(stream);
        while let Some((part, told)) = request(&mut reader)? {
            answer(reader.get_mut())?;
            if part == "actions" && told["action_type"] == "InstanceStart" {
                return Ok(());
            }
            take(machine, &part, &told);
        }
    }
}

/// A request: what it is of, and what it says. None at the end of the connection.
fn request(reader: &mut BufReader<UnixStream>) -> Result<Option<(String, Value)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let part = line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((part, serde_json::from_slice(&body).unwrap_or(Value::Null))))
}

fn answer(stream: &mut UnixStream) -> Result<()> {
    Ok(stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?)
}
