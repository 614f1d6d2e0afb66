//! A test of the guest: `tests/vm/NAME.sh`, whose head describes the machine in lines `#: KEY VALUE`.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::kernel::Flavour;

/// Requests in the head of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Script {
    /// The file's name without `.sh`.
    pub name: String,
    /// Description of the test, in a line.
    pub about: String,
    /// Runs only if named: it measures, and checks nothing.
    pub only_named: bool,
    /// The variant of the kernel.
    pub flavour: Flavour,
    pub memory_mib: u32,
    pub cpus: u32,
    /// The time limit of one run.
    pub seconds: u64,
    /// Further words for the kernel's command line.
    pub kernel_args: String,
    /// Modules to load before the script starts.
    pub modules: Vec<String>,
    /// Programs of the host to copy with their libraries; `inlock` is the build under test, `xtask` this program.
    pub tools: Vec<String>,
    /// Files of the host to copy to the same path, libraries with their dependencies.
    pub files: Vec<String>,
    /// Number of starts of the machine: except for the last, the script cuts it off.
    pub boots: usize,
    /// Sizes of empty disks, in bytes.
    pub disks: Vec<u64>,
    /// The script itself.
    pub text: String,
}

impl Script {
    /// Parses the script at `path`.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(name, text)
    }

    pub(super) fn parse(name: String, text: String) -> Result<Self> {
        let mut script = Self {
            name,
            about: String::new(),
            only_named: false,
            flavour: Flavour::Cloud,
            memory_mib: 512,
            cpus: 2,
            seconds: 300,
            kernel_args: String::new(),
            modules: Vec::new(),
            tools: Vec::new(),
            files: Vec::new(),
            boots: 1,
            disks: Vec::new(),
            text: String::new(),
        };
        for line in text.lines().map_while(|line| line.strip_prefix("#: ")) {
            let (key, value) = line.trim().split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = value.trim();
            script.set(key, value).with_context(|| format!("tests/vm/{}.sh: '#: {line}'", script.name))?;
        }
        if script.about.is_empty() {
            bail!("tests/vm/{}.sh has no line '#: about ...'", script.name);
        }
        script.text = text;
        Ok(script)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let words = || value.split_whitespace().map(str::to_owned);
        match key {
            "about" => value.clone_into(&mut self.about),
            "only" if value == "named" => self.only_named = true,
            "flavour" if value == "generic" => self.flavour = Flavour::Generic,
            "memory" => self.memory_mib = value.parse()?,
            "cpus" => self.cpus = value.parse()?,
            "seconds" => self.seconds = value.parse()?,
            "kernel" => value.clone_into(&mut self.kernel_args),
            "modules" => self.modules.extend(words()),
            "tools" => self.tools.extend(words()),
            "files" => self.files.extend(words()),
            "boots" => self.boots = value.parse()?,
            "disk" => self.disks.push(size(value)?),
            _ => bail!(
                "there is no such key; there are about, only named, flavour generic, memory, cpus, seconds, kernel, modules, tools, files, boots, disk"
            ),
        }
        Ok(())
    }
}

/// Parses a size in bytes: digits, with K, M or G behind.
fn size(text: &str) -> Result<u64> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => bail!("a size is a number with K, M or G behind"),
    };
    let number: u64 = text[..text.len() - 1].parse()?;
    number.checked_mul(1 << shift).context("the size is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_head_is_parsed() {
        let text = "#: about  a test\n#: memory 256\n#: tools a b\n#: tools c\n#: disk 4M\n#: disk 1G\n#: kernel x=1 y\n#: boots 3\n#: flavour generic\nok it\n#: cpus 9\n";
        let script = Script::parse("name".into(), text.into()).unwrap();
        assert_eq!((script.about.as_str(), script.memory_mib, script.cpus), ("a test", 256, 2));
        assert_eq!((script.tools, script.boots), (["a", "b", "c"].map(str::to_owned).to_vec(), 3));
        assert_eq!(script.disks, [4 << 20, 1 << 30]);
        assert_eq!((script.kernel_args.as_str(), script.flavour), ("x=1 y", Flavour::Generic));
    }

    #[test]
    fn invalid_script_head_is_refused() {
        for text in ["ok it\n", "#: about x\n#: memory much\n", "#: about x\n#: disk 12\n", "#: about x\n#: dsik 4M\n"]
        {
            assert!(Script::parse("name".into(), text.into()).is_err(), "{text}");
        }
    }
}
