//! Random sequences of changes to a header, each step by Inlock or by cryptsetup: after each step both open the volume
//! with every key that is left, and with no other.
//!
//! `INLOCK_SEQUENCES` is the number of sequences, `INLOCK_SEED` the first seed. With `INLOCK_BIN`, the program of that
//! path makes steps, too, by the same command lines as cryptsetup. `cargo xtask header-proof` runs 300 sequences.

use crate::support::{Bench, cheap, installed, output, run, secret, with};
use inlock_volume::{
    EditError, HeaderBackup, HeaderDevice, KdfKind, NewKeyslot, Priority, Secret, UnlockError, UnlockOptions, Volume,
    VolumeKey, luks2,
};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const CRYPTSETUP: &str = "cryptsetup";
const SEQUENCES: u64 = 16;
const MAX_KEYS: usize = 4;
const PBKDF2: [&str; 5] = ["-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
const ARGON2: [&str; 7] = ["-q", "--pbkdf", "argon2id", "--pbkdf-force-iterations", "4", "--pbkdf-memory", "32"];

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }
}

/// Expected content of a header.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    /// Passphrases by keyslot.
    keys: BTreeMap<u32, String>,
    /// Unbound keyslots.
    unbound: BTreeMap<u32, String>,
    /// Priorities other than normal.
    priorities: BTreeMap<u32, Priority>,
    tokens: BTreeMap<u32, &'static str>,
    uuid: String,
    label: String,
    flags: Vec<String>,
}

struct Sequence<'b> {
    bench: &'b Bench,
    random: Random,
    version: u32,
    model: Model,
    /// A header backup, with the model of that time.
    backup: Option<Model>,
    /// Passphrases that do not open any longer.
    removed: Vec<String>,
    counter: u32,
    payload: u64,
    log: Vec<String>,
    /// The program of a step that the library does not make.
    program: &'static str,
    steps: Steps,
}

/// Number of steps by each program.
#[derive(Clone, Copy, Default)]
struct Steps {
    library: usize,
    binary: usize,
    cryptsetup: usize,
}

impl<'b> Sequence<'b> {
    fn new(bench: &'b Bench, seed: u64) -> Self {
        let mut random = Random(seed);
        let version = if random.below(3) == 0 { 1 } else { 2 };
        let image = bench.image("image", 4 << 20);
        let mut sequence = Self {
            bench,
            random,
            version,
            model: Model::default(),
            backup: None,
            removed: Vec::new(),
            counter: 0,
            payload: 0,
            log: vec![format!("seed {seed}, LUKS{version}")],
            program: CRYPTSETUP,
            steps: Steps::default(),
        };
        let (first, file) = sequence.new_passphrase();
        // Sometimes the areas have space for few keyslots, so that changes find none.
        let keyslots = sequence.random.of(&["512k", "1024k"]);
        let size = ["--luks2-keyslots-size", keyslots];
        let kind = if version == 1 { "luks1" } else { "luks2" };
        let spec = sequence.random.of(&[["aes-xts-plain64", "256"], ["aes-cbc-essiv:sha256", "128"]]);
        let mut args = vec!["luksFormat", "--type", kind, "-c", spec[0], "-s", spec[1], "-d", &file];
        args.extend(PBKDF2);
        if version == 2 {
            args.extend(size);
        }
        run("cryptsetup", &[&args[..], &[&image]].concat());
        // The payload is random, and no step may change it.
        let volume = sequence.volume();
        sequence.payload = volume.data_offset();
        let payload: Vec<u8> = (0..8192).map(|_| sequence.random.below(256) as u8).collect();
        bench.device("image").write_all_at(&payload, sequence.payload).unwrap();
        sequence.model.uuid = volume.uuid().to_owned();
        sequence.model.keys.insert(0, first);
        sequence
    }

    fn volume(&self) -> Volume {
        let volume =
            Volume::load(&self.bench.device("image")).unwrap_or_else(|error| panic!("{error}: {:?}", self.log));
        assert!(volume.warnings().is_empty(), "{:?}: {:?}", volume.warnings(), self.log);
        volume
    }

    fn luks2(&self) -> luks2::Luks2 {
        let Volume::Luks2(luks2) = self.volume() else { panic!("not LUKS2: {:?}", self.log) };
        *luks2
    }

    /// Returns a passphrase that was not there before, and its key file.
    fn new_passphrase(&mut self) -> (String, String) {
        self.counter += 1;
        let passphrase = format!("passphrase {}", self.counter);
        let file = self.file_of(&passphrase);
        (passphrase, file)
    }

    fn file_of(&self, passphrase: &str) -> String {
        let name = passphrase.replace(' ', "-");
        std::fs::write(self.bench.path(&name), passphrase).unwrap();
        self.bench.text(&name)
    }

    /// Runs the program of this step, which must succeed.
    fn command(&self, args: &[&str]) {
        let output = output(self.program, args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}: {:?}", self.log);
    }

    fn any_key(&mut self) -> (u32, String) {
        let keys: Vec<_> = self.model.keys.clone().into_iter().collect();
        self.random.of(&keys)
    }

    /// Returns a passphrase that cryptsetup finds without the number of its keyslot.
    fn any_found(&mut self, except: Option<u32>) -> Option<(u32, String)> {
        let is_found = |number: &u32| self.model.priorities.get(number) != Some(&Priority::Ignore);
        let keys =
            self.model.keys.clone().into_iter().filter(|(number, _)| is_found(number) && Some(*number) != except);
        let keys: Vec<_> = keys.collect();
        (!keys.is_empty()).then(|| self.random.of(&keys))
    }

    /// Returns the key that a passphrase opens.
    fn key(&self, passphrase: &str, number: u32) -> VolumeKey {
        let options = with!(UnlockOptions::default(); keyslot: Some(number));
        let device = self.bench.device("image");
        self.volume().unlock_key(&device, &to_secret(passphrase), &options).unwrap().1
    }

    /// Returns a free number, or none to leave the choice to the program.
    fn some_number(&mut self) -> Option<u32> {
        let max = if self.version == 1 { 8 } else { 32 };
        let number = self.random.below(max) as u32;
        let is_free = !self.model.keys.contains_key(&number) && !self.model.unbound.contains_key(&number);
        (is_free && self.random.coin()).then_some(number)
    }

    /// Returns the keyslot that a new passphrase opens.
    fn number_of(&self, passphrase: &str) -> u32 {
        let device = self.bench.device("image");
        let options = UnlockOptions::default();
        match self.volume().unlock_key(&device, &to_secret(passphrase), &options) {
            Ok((number, _)) => number,
            Err(error) => panic!("'{passphrase}': {error}: {:?}", self.log),
        }
    }

    /// Does one change, by the program of `ours`; some are possible only with LUKS2, or not at the moment.
    fn step(&mut self) {
        let is_luks2 = self.version == 2;
        let choice = self.random.below(if is_luks2 { 22 } else { 13 });
        let (ours, binary) = match (choice, self.random.coin(), binary()) {
            // Only the library sets flags.
            (18, ..) => (true, None),
            (_, ours, binary) => (ours, binary.filter(|_| !ours && self.random.coin())),
        };
        self.program = binary.unwrap_or(CRYPTSETUP);
        let (name, count) = match (ours, binary) {
            (true, _) => ("library", &mut self.steps.library),
            (false, Some(_)) => ("inlock", &mut self.steps.binary),
            (false, None) => ("cryptsetup", &mut self.steps.cryptsetup),
        };
        *count += 1;
        self.log.push(format!("{name} {choice}"));
        match choice {
            0..=2 => self.add(ours),
            3..=4 => self.remove(ours),
            5..=6 => self.kill(ours),
            7..=9 => self.change(ours),
            10 => self.set_uuid(ours),
            11 => self.back_up(ours),
            12 => self.restore(ours),
            13 => self.convert_keyslot(ours),
            14 => self.add_unbound(ours),
            15 => self.set_label(ours),
            16..=17 => self.set_priority(ours),
            18 => self.set_flags(),
            19..=20 => self.add_token(ours),
            _ => self.remove_token(ours),
        }
    }

    fn add(&mut self, ours: bool) {
        if self.model.keys.len() + self.model.unbound.len() >= MAX_KEYS {
            return self.kill(ours);
        }
        let Some((number, by)) = self.any_found(None) else { return self.set_priority(ours) };
        let (passphrase, new_file) = self.new_passphrase();
        let wanted = self.some_number();
        let device = self.bench.device("image");
        if ours {
            let key = self.key(&by, number);
            let new = with!(self.new_keyslot(); number: wanted);
            let mut volume = self.volume();
            match volume.add_keyslot(&device, &key, &to_secret(&passphrase), &new) {
                Ok(added) => assert_eq!(added, wanted.unwrap_or(added)),
                Err(EditError::NoFreeArea { .. }) => return self.is_full_for_cryptsetup(&by, &new_file),
                Err(error) => panic!("{error}: {:?}", self.log),
            }
        } else {
            let (file, image) = (self.file_of(&by), self.bench.text("image"));
            let slot = wanted.map(|number| number.to_string());
            let mut args = vec!["luksAddKey", "-d", &file];
            args.extend(self.costs());
            if let Some(slot) = &slot {
                args.extend(["-S", slot]);
            }
            let added = output(self.program, &[&args[..], &[&image, &new_file]].concat());
            if !added.status.success() {
                let key = self.key(&by, number);
                let ours = self.volume().add_keyslot(&device, &key, &to_secret(&passphrase), &self.new_keyslot());
                assert!(matches!(ours, Err(EditError::NoFreeArea { .. })), "{ours:?}: {added:?}: {:?}", self.log);
                return;
            }
        }
        let added = self.number_of(&passphrase);
        assert!(wanted.is_none_or(|wanted| wanted == added), "{:?}", self.log);
        assert!(!self.model.keys.contains_key(&added), "{:?}", self.log);
        self.model.keys.insert(added, passphrase);
    }

    /// Checks that cryptsetup has no space for a keyslot either.
    fn is_full_for_cryptsetup(&self, by: &str, new_file: &str) {
        let (file, image) = (self.file_of(by), self.bench.text("image"));
        let added = output(CRYPTSETUP, &[&["luksAddKey", "-d", &file], &PBKDF2[..], &[&image, new_file]].concat());
        let errors = String::from_utf8_lossy(&added.stderr);
        assert!(errors.contains("No space for new keyslot"), "{added:?}: {:?}", self.log);
    }

    fn new_keyslot(&mut self) -> NewKeyslot {
        let kind = if self.version == 2 && self.random.coin() { KdfKind::Argon2id } else { KdfKind::Pbkdf2 };
        with!(NewKeyslot::default(); kdf: cheap(kind))
    }

    fn costs(&mut self) -> &'static [&'static str] {
        if self.version == 2 && self.random.coin() { &ARGON2 } else { &PBKDF2 }
    }

    fn forget(&mut self, number: u32) {
        let gone = self.model.keys.remove(&number).or_else(|| self.model.unbound.remove(&number));
        self.removed.extend(gone);
        self.model.priorities.remove(&number);
    }

    /// Removes the keyslot that a passphrase opens.
    fn remove(&mut self, ours: bool) {
        let (number, passphrase) = self.any_key();
        if self.model.keys.len() < 2 || self.model.priorities.get(&number) == Some(&Priority::Ignore) {
            return self.add(ours);
        }
        if ours {
            let opened = self.number_of(&passphrase);
            assert_eq!(opened, number, "{:?}", self.log);
            self.volume().kill_keyslot(&self.bench.device("image"), opened).unwrap();
        } else {
            let (file, image) = (self.file_of(&passphrase), self.bench.text("image"));
            self.command(&["luksRemoveKey", "-q", "-d", &file, &image]);
        }
        self.forget(number);
    }

    /// Removes a keyslot by its number.
    fn kill(&mut self, ours: bool) {
        let unbound: Vec<u32> = self.model.unbound.keys().copied().collect();
        let number = match unbound.is_empty() || self.random.coin() {
            true if self.model.keys.len() < 2 => return self.set_uuid(ours),
            true => self.any_key().0,
            false => self.random.of(&unbound),
        };
        if ours {
            self.volume().kill_keyslot(&self.bench.device("image"), number).unwrap();
        } else {
            let Some((_, by)) = self.any_found(Some(number)) else { return self.set_priority(ours) };
            let (file, image) = (self.file_of(&by), self.bench.text("image"));
            self.command(&["luksKillSlot", "-q", "-d", &file, &image, &number.to_string()]);
        }
        self.forget(number);
    }

    /// Replaces a passphrase, with or without the number of the keyslot.
    fn change(&mut self, ours: bool) {
        let (number, old) = self.any_key();
        let (passphrase, new_file) = self.new_passphrase();
        // Without its number a keyslot that is ignored is not found.
        let is_ignored = self.model.priorities.get(&number) == Some(&Priority::Ignore);
        let names = self.random.coin() || is_ignored;
        let device = self.bench.device("image");
        if ours {
            let key = self.key(&old, number);
            let new = self.new_keyslot();
            let new = with!(new; number: names.then_some(number), may_overwrite: true);
            let changed = self.volume().change_keyslot(&device, number, &key, &to_secret(&passphrase), &new);
            let changed = changed.unwrap_or_else(|error| panic!("{error}: {:?}", self.log));
            assert!(!names || changed == number, "{:?}", self.log);
        } else {
            let (file, image, slot) = (self.file_of(&old), self.bench.text("image"), number.to_string());
            let mut args = vec!["luksChangeKey", "-d", &file];
            args.extend(self.costs());
            if names {
                args.extend(["-S", &slot]);
            }
            self.command(&[&args[..], &[&image, &new_file]].concat());
        }
        let priority = self.model.priorities.get(&number).copied();
        self.forget(number);
        let options = with!(UnlockOptions::default(); keyslot: names.then_some(number));
        let opened = self.volume().unlock_key(&device, &to_secret(&passphrase), &options);
        let (changed, _) = opened.unwrap_or_else(|error| panic!("{error}: {:?}", self.log));
        self.model.keys.insert(changed, passphrase);
        // cryptsetup keeps a priority only if the keyslot is named, Inlock always.
        let kept = match self.volume() {
            Volume::Luks2(luks2) => priority_of(&luks2, changed),
            _ => None,
        };
        assert!(kept == priority || !ours && kept.is_none(), "{:?}", self.log);
        self.model.priorities.extend(kept.map(|kept| (changed, kept)));
    }

    /// Gives a keyslot other parameters with the same passphrase.
    fn convert_keyslot(&mut self, ours: bool) {
        let (number, passphrase) = self.any_key();
        let cipher = self.random.of(&[("aes-xts-plain64", "512"), ("aes-cbc-essiv:sha256", "256")]);
        if ours {
            let key = self.key(&passphrase, number);
            let new = self.new_keyslot();
            let bits: usize = cipher.1.parse().unwrap();
            let cipher = Some((cipher.0.parse().unwrap(), bits / 8));
            let new = with!(new; number: Some(number), cipher: cipher, may_overwrite: true);
            let device = self.bench.device("image");
            self.volume().change_keyslot(&device, number, &key, &to_secret(&passphrase), &new).unwrap();
        } else {
            let (file, image, slot) = (self.file_of(&passphrase), self.bench.text("image"), number.to_string());
            let mut args = vec!["luksConvertKey", "-d", &file, "-S", &slot];
            args.extend(["--keyslot-cipher", cipher.0, "--keyslot-key-size", cipher.1]);
            args.extend(self.costs());
            self.command(&[&args[..], &[&image]].concat());
        }
    }

    fn add_unbound(&mut self, ours: bool) {
        if !self.model.unbound.is_empty() || self.model.keys.len() >= MAX_KEYS {
            return self.kill(ours);
        }
        let (passphrase, file) = self.new_passphrase();
        if ours {
            let key = VolumeKey::new(&[self.random.below(256) as u8; 16]);
            let new = self.new_keyslot();
            let device = self.bench.device("image");
            match self.volume().add_unbound_keyslot(&device, &key, &to_secret(&passphrase), &new) {
                Err(EditError::NoFreeArea { .. }) => return,
                added => added.map(drop).unwrap_or_else(|error| panic!("{error}: {:?}", self.log)),
            }
        } else {
            let image = self.bench.text("image");
            let args = [&["luksAddKey", "--unbound", "-s", "128"], self.costs(), &[&image, &file]].concat();
            let added = output(self.program, &args);
            if !added.status.success() {
                let errors = String::from_utf8_lossy(&added.stderr);
                assert!(errors.contains("No space for new keyslot"), "{added:?}: {:?}", self.log);
                return;
            }
        }
        self.model.unbound.insert(self.number_of(&passphrase), passphrase);
    }

    fn set_uuid(&mut self, ours: bool) {
        let uuid = format!("{:08x}-2222-3333-4444-555555555555", self.random.below(1 << 32));
        match ours {
            true => self.volume().set_uuid(&self.bench.device("image"), Some(&uuid)).unwrap(),
            false => self.command(&["luksUUID", "-q", "--uuid", &uuid, &self.bench.text("image")]),
        }
        self.model.uuid = uuid;
    }

    fn set_label(&mut self, ours: bool) {
        let label = format!("label {}", self.random.below(1000));
        match ours {
            true => self.luks2().set_labels(&self.bench.device("image"), Some(&label), None).unwrap(),
            // cryptsetup sets both.
            false => self.command(&["config", "-q", "--label", &label, &self.bench.text("image")]),
        }
        self.model.label = label;
    }

    fn set_priority(&mut self, ours: bool) {
        let (number, _) = self.any_key();
        let choices = [(Priority::Ignore, "ignore"), (Priority::Normal, "normal"), (Priority::Prefer, "prefer")];
        let (priority, name) = self.random.of(&choices);
        let image = self.bench.text("image");
        match ours {
            true => self.luks2().set_priority(&self.bench.device("image"), number, priority).unwrap(),
            false => self.command(&["config", "--priority", name, "-S", &number.to_string(), &image]),
        }
        self.model.priorities.insert(number, priority);
        self.model.priorities.retain(|_, priority| *priority != Priority::Normal);
    }

    /// Sets activation flags; cryptsetup sets them only while it activates a volume.
    fn set_flags(&mut self) {
        let flags = self.random.of(&[&[][..], &["allow-discards"], &["no-journal", "no-read-workqueue"]]);
        self.luks2().set_flags(&self.bench.device("image"), flags).unwrap();
        self.model.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    fn add_token(&mut self, ours: bool) {
        if self.model.tokens.len() >= 4 {
            return self.remove_token(ours);
        }
        let kind = self.random.of(&["luks2-keyring", "other"]);
        let (number, _) = self.any_key();
        let json = match kind {
            "other" => format!(r#"{{"type":"other","keyslots":["{number}"],"more":[1,{{}},null]}}"#),
            _ => format!(r#"{{"type":"luks2-keyring","keyslots":["{number}"],"key_description":"d"}}"#),
        };
        let before = self.luks2().metadata().tokens.keys().copied().collect::<Vec<_>>();
        if ours {
            self.luks2().add_token(&self.bench.device("image"), None, &json).unwrap();
        } else {
            let (file, image) = (self.bench.text("token"), self.bench.text("image"));
            std::fs::write(&file, json).unwrap();
            self.command(&["token", "import", "--json-file", &file, &image]);
        }
        let added = self.luks2().metadata().tokens.keys().copied().find(|number| !before.contains(number));
        self.model.tokens.insert(added.expect("a token was added"), kind);
    }

    fn remove_token(&mut self, ours: bool) {
        let Some(&number) = self.model.tokens.keys().next() else { return self.set_label(ours) };
        let image = self.bench.text("image");
        match ours {
            true => self.luks2().remove_token(&self.bench.device("image"), number).unwrap(),
            false => self.command(&["token", "remove", "--token-id", &number.to_string(), &image]),
        }
        self.model.tokens.remove(&number);
    }

    fn back_up(&mut self, ours: bool) {
        let backup = self.bench.path("backup");
        let _ = std::fs::remove_file(&backup);
        let (file, image) = (self.bench.text("backup"), self.bench.text("image"));
        if ours {
            let made = HeaderBackup::of_device(&self.bench.device("image"));
            let made = made.unwrap_or_else(|error| panic!("{error}: {:?}", self.log));
            std::fs::write(&backup, made.bytes()).unwrap();
        } else {
            self.command(&["luksHeaderBackup", "-q", "--header-backup-file", &file, &image]);
        }
        self.backup = Some(self.model.clone());
    }

    /// Restores the last backup, which either program made.
    fn restore(&mut self, ours: bool) {
        let Some(model) = self.backup.clone() else { return self.back_up(ours) };
        if ours {
            let backup = HeaderBackup::of_file(&self.bench.device("backup")).unwrap();
            let restored = backup.restore(&self.bench.device("image"));
            restored.unwrap_or_else(|error| panic!("{error}: {:?}", self.log));
        } else {
            // Both programs restore the backup of another UUID only after asking, which -q answers.
            let (file, image) = (self.bench.text("backup"), self.bench.text("image"));
            self.command(&["luksHeaderRestore", "-q", "--header-backup-file", &file, &image]);
        }
        let all = |model: &Model| model.keys.values().chain(model.unbound.values()).cloned().collect::<Vec<_>>();
        let back = all(&model);
        self.removed.retain(|removed| !back.contains(removed));
        self.removed.extend(all(&self.model).into_iter().filter(|passphrase| !back.contains(passphrase)));
        self.model = model;
    }

    /// Checks the header with both programs.
    fn check(&mut self, payload: &[u8]) {
        let device = self.bench.device("image");
        let volume = self.volume();
        let log = &self.log;
        let active = volume.active_keyslots();
        for (number, passphrase) in &self.model.keys {
            let options = with!(UnlockOptions::default(); keyslot: Some(*number));
            let unlocked = volume.unlock(&device, &to_secret(passphrase), &options);
            assert!(unlocked.is_ok(), "'{passphrase}' opens {number}: {:?}: {log:?}", unlocked.err());
            let (file, image, slot) = (self.file_of(passphrase), self.bench.text("image"), number.to_string());
            let opened = output("cryptsetup", &["open", "--test-passphrase", "-d", &file, "-S", &slot, &image]);
            assert!(opened.status.success(), "'{passphrase}' opens {number} in cryptsetup: {opened:?}: {log:?}");
            let is_ignored = self.model.priorities.get(number) == Some(&Priority::Ignore);
            assert_eq!(active.contains(number), !is_ignored, "{number}: {log:?}");
        }
        let count = |priority| self.model.priorities.values().filter(|other| **other == priority).count();
        assert_eq!(active.len() + count(Priority::Ignore), self.model.keys.len(), "{log:?}");
        for removed in &self.removed {
            let opened = volume.unlock_key(&device, &to_secret(removed), &UnlockOptions::default());
            let is_refused = matches!(opened, Err(UnlockError::WrongPassphrase | UnlockError::NoUsableKeyslot));
            assert!(is_refused, "'{removed}': {opened:?}: {log:?}");
        }
        // A process for each removed passphrase takes long: the last one, and one of all.
        let (last, one) = (self.removed.last().cloned(), self.random.below(self.removed.len().max(1) as u64));
        let mut some = vec![last];
        some.push(self.removed.get(one as usize).cloned());
        some.dedup();
        for removed in some.into_iter().flatten() {
            let (file, image) = (self.file_of(&removed), self.bench.text("image"));
            let opened = output("cryptsetup", &["open", "--test-passphrase", "-d", &file, &image]);
            assert!(matches!(opened.status.code(), Some(1 | 2)), "'{removed}' in cryptsetup: {:?}", self.log);
        }
        assert_eq!(volume.uuid(), self.model.uuid, "{:?}", self.log);
        if let Volume::Luks2(luks2) = &volume {
            assert_eq!(luks2.label().unwrap_or_default(), self.model.label, "{:?}", self.log);
            let kinds = luks2.metadata().tokens.iter().map(|(number, token)| (*number, token.kind.clone()));
            let kinds: Vec<_> = kinds.collect();
            let wanted: Vec<_> = self.model.tokens.iter().map(|(number, kind)| (*number, (*kind).to_owned())).collect();
            assert_eq!(kinds, wanted, "{:?}", self.log);
            assert_eq!(luks2.metadata().config.flags, self.model.flags, "{:?}", self.log);
            let unbound = |number: &u32| luks2.metadata().keyslots.contains_key(number);
            assert!(self.model.unbound.keys().all(unbound), "{:?}", self.log);
        }
        let mut now = vec![0; payload.len()];
        device.read_exact_at(&mut now, self.payload).unwrap();
        assert!(now == payload, "the payload changed: {:?}", self.log);
    }
}

fn to_secret(passphrase: &str) -> Secret {
    secret(passphrase.as_bytes())
}

fn priority_of(luks2: &luks2::Luks2, number: u32) -> Option<Priority> {
    match luks2.metadata().keyslots[&number].priority {
        0 => Some(Priority::Ignore),
        2 => Some(Priority::Prefer),
        _ => None,
    }
}

/// Returns the path of Inlock's program, if it is to make steps.
fn binary() -> Option<&'static str> {
    static BINARY: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("INLOCK_BIN").ok());
    BINARY.as_deref()
}

/// Runs a sequence of 10 to 30 changes, and returns how many of them each program made.
fn run_sequence(seed: u64) -> Steps {
    let bench = Bench::new();
    let mut sequence = Sequence::new(&bench, seed);
    let steps = 10 + sequence.random.below(21);
    let device = bench.device("image");
    let mut payload = vec![0; (device.len().unwrap() - sequence.payload) as usize];
    device.read_exact_at(&mut payload, sequence.payload).unwrap();
    for _ in 0..steps {
        sequence.step();
        sequence.check(&payload);
    }
    let (dump, image) = (sequence.volume().dump(&bench.text("image")).to_string(), bench.text("image"));
    assert_eq!(dump.trim_end(), run("cryptsetup", &["luksDump", &image]).trim_end(), "{:?}", sequence.log);
    sequence.steps
}

#[test]
fn random_changes_by_both_programs_keep_every_key() {
    if !installed("cryptsetup") {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let sequences = number("INLOCK_SEQUENCES").unwrap_or(SEQUENCES);
    let first = number("INLOCK_SEED").unwrap_or(14);
    println!("seeds from {first}");
    let made = std::thread::scope(|scope| {
        let half =
            |parity: u64| move || (0..sequences).filter(|n| n % 2 == parity).map(|n| run_sequence(first + n)).collect();
        let threads: Vec<_> = [0, 1].map(|parity| scope.spawn(half(parity))).into();
        let made = threads.into_iter().map(|thread| -> Vec<Steps> { thread.join().unwrap() });
        made.collect::<Vec<_>>().concat()
    });
    let by = |program: fn(&Steps) -> usize| made.iter().map(program).sum::<usize>();
    let (library, cryptsetup) = (by(|steps| steps.library), by(|steps| steps.cryptsetup));
    println!("COUNT sequences_of_header_edits {}", made.len());
    println!("COUNT header_edits_of_inlock {}", library + by(|steps| steps.binary));
    println!("COUNT header_edits_of_cryptsetup {cryptsetup}");
    assert!(made.len() as u64 == sequences && library > 0 && cryptsetup > 0);
    assert_eq!(binary().is_some(), by(|steps| steps.binary) > 0);
}
