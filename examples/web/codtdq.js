// Networks from program files (`codtdq export --to program`) in a browser or in Node: the C
// interface of codtdq.h over WebAssembly. `make wasm` builds codtdq.wasm.
//
//     const engine = await Engine.load(await (await fetch("codtdq.wasm")).arrayBuffer());
//     const network = engine.open(new Uint8Array(await (await fetch("vit.codtdq")).arrayBuffer()));
//     const mask = network.predict(rgb, height, width);   // a byte for each pixel, 0 to 255
//     network.close();

const VERSION = 1; // CODTDQ_VERSION
const ERROR_BYTES = 256;
const SHAPE_BYTES = 168; // codtdq_shape
const AXES = 8;

/** What the library refuses, in its own words. */
export class CodtdqError extends Error {
  name = "CodtdqError";
}

/** The library in memory. */
export class Engine {
  /** Compiles the bytes of codtdq.wasm; fails where there are no 128-bit vectors or exceptions. */
  static async load(bytes) {
    const engine = new Engine();
    let made;
    try {
      const module = await WebAssembly.compile(bytes);
      made = await WebAssembly.instantiate(module, engine.#imports(module));
    } catch (error) {
      throw new CodtdqError(
        `codtdq.wasm does not run here (${error.message}); it needs a browser of 2023 or later`,
      );
    }
    engine.c = made.exports;
    engine.c._initialize?.();
    if (engine.c.codtdq_version() !== VERSION)
      throw new CodtdqError("codtdq.wasm has another interface version; run make wasm again");
    return engine;
  }

  // The few functions of a system that the C library asks for: a clock, and ends.
  #imports(module) {
    const known = {
      clock_time_get: (_clock, _precision, at) => {
        const now = BigInt(Math.round(performance.now() * 1e6));
        this.view().setBigUint64(at, now, true);
        return 0;
      },
      emscripten_notify_memory_growth: () => {},
      proc_exit: (code) => {
        throw new CodtdqError(`the engine ended with code ${code}`);
      },
    };
    const imports = {};
    for (const { module: space, name, kind } of WebAssembly.Module.imports(module)) {
      if (kind !== "function") continue;
      imports[space] ??= {};
      imports[space][name] = known[name] ?? (() => 52); // ENOSYS: no files, no environment
    }
    return imports;
  }

  /** The instruction set in use. */
  get instructionSet() {
    return this.text(this.c.cod_isa());
  }

  /** Opens the bytes of a program file; everything it says is checked first. */
  open(bytes) {
    return this.borrow(bytes.length, (data) => {
      this.bytes(data, bytes.length).set(bytes);
      const handle = this.#told((error) =>
        this.c.codtdq_open_memory(data, bytes.length, 1, error, ERROR_BYTES),
      );
      return new Network(this, handle);
    });
  }

  // Calls a function that returns a handle, with room for one line of error.
  #told(call) {
    return this.borrow(ERROR_BYTES, (error) => {
      const handle = call(error);
      if (!handle) throw new CodtdqError(this.text(error));
      return handle;
    });
  }

  /** Calls a function that returns a code, with room for one line of error. */
  check(call) {
    this.borrow(ERROR_BYTES, (error) => {
      if (call(error)) throw new CodtdqError(this.text(error));
    });
  }

  /** Gives a function some memory of the module, and frees it afterwards. */
  borrow(size, use) {
    const at = this.c.malloc(Math.max(size, 1));
    if (!at) throw new CodtdqError(`out of memory: ${size} bytes are wanted`);
    try {
      return use(at);
    } finally {
      this.c.free(at);
    }
  }

  // Views end when memory grows: they are made anew for each use.
  view() {
    return new DataView(this.c.memory.buffer);
  }
  bytes(at, size) {
    return new Uint8Array(this.c.memory.buffer, at, size);
  }
  floats(at, count) {
    return new Float32Array(this.c.memory.buffer, at, count);
  }
  text(at) {
    const all = new Uint8Array(this.c.memory.buffer);
    return new TextDecoder().decode(all.slice(at, all.indexOf(0, at)));
  }
}

/** A network, ready to run. */
export class Network {
  constructor(engine, handle) {
    this.engine = engine;
    this.handle = handle;
    this.shapes = this.#describe();
    this.info = this.#texts();
  }

  /** Memory of the weights, in bytes. */
  get weightBytes() {
    return Number(this.engine.c.codtdq_constant_bytes(this.handle));
  }

  /** The mask of an image, a byte for each pixel: rgb has height * width * 3 bytes. */
  predict(rgb, height, width) {
    const { engine, handle } = this, pixels = height * width;
    return engine.borrow(rgb.length, (from) =>
      engine.borrow(pixels, (to) => {
        engine.bytes(from, rgb.length).set(rgb);
        const sides = [BigInt(height), BigInt(width)];
        engine.check((error) =>
          engine.c.codtdq_predict(
            handle, 0n, from, rgb.length, ...sides, to, pixels, 1, error, ERROR_BYTES,
          ),
        );
        return engine.bytes(to, pixels).slice();
      }),
    );
  }

  /** Logits of one normalised input, a Float32Array as `shapes[0].input` says. */
  run(input) {
    const { engine, handle } = this, count = this.shapes[0].outputCount;
    return engine.borrow(4 * input.length, (from) =>
      engine.borrow(4 * count, (to) => {
        engine.floats(from, input.length).set(input);
        engine.check((error) =>
          engine.c.codtdq_run(
            handle, 0n, from, BigInt(input.length), to, BigInt(count), 1, error, ERROR_BYTES,
          ),
        );
        return engine.floats(to, count).slice();
      }),
    );
  }

  /** Frees its memory. */
  close() {
    this.engine.c.codtdq_close(this.handle);
    this.handle = 0;
  }

  #describe() {
    const { engine, handle } = this, found = [];
    for (let i = 0n; i < engine.c.codtdq_programs(handle); i++)
      found.push(engine.borrow(SHAPE_BYTES, (at) => {
        engine.c.codtdq_describe(handle, i, at);
        const view = engine.view();
        const long = (offset) => Number(view.getBigInt64(at + offset, true));
        const sides = (count, offset) => Array.from({ length: count }, (_, k) => long(offset + 8 * k));
        return {
          input: sides(view.getInt32(at, true), 8),
          output: sides(view.getInt32(at + 4, true), 8 + 8 * AXES),
          outputCount: long(16 + 16 * AXES),
          arenaBytes: long(24 + 16 * AXES),
          instructions: long(32 + 16 * AXES),
        };
      }));
    return found;
  }

  #texts() {
    const { engine, handle } = this, info = {};
    for (let i = 0n, key; (key = engine.c.codtdq_key(handle, i)); i++)
      info[engine.text(key)] = engine.text(engine.c.codtdq_text(handle, key));
    return info;
  }
}
