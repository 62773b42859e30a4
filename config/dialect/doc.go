// Package dialect translates configurations of DeepSpeed, Accelerate, the Hugging Face Trainer, Axolotl and
// LLaMA-Factory into jobs.
package dialect
